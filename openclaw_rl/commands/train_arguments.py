"""Flags of ``openclaw-rl train``, in a separate module so that help is instant."""

from __future__ import annotations

import argparse


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--env", metavar="NAME", help="toolcall, terminal, swe, gui, … or pkg.module:Class [$ENV_TYPE]")
    add("--tasks", default="", metavar="PATH", help="file or folder of tasks [the built-in ones]")
    add("--difficulty", type=int, metavar="N", help="only tasks up to this difficulty; 0 is easiest [all]")
    add(
        "--parallel",
        type=int,
        default=0,
        metavar="N",
        help="attempts that run at the same time [$PARALLEL_ENVS, or 8]",
    )
    add(
        "--pool",
        default="local",
        metavar="WHERE",
        help="where environments run: local, ray or ray://HOST:PORT [local]",
    )
    add(
        "--attempts",
        type=int,
        default=8,
        metavar="N",
        help="attempts at each task, which are compared with each other [8]",
    )
    add("--groups", type=int, default=0, metavar="N", help="stop after N tasks [never]")
    add("--minutes", type=float, default=0, metavar="M", help="stop after M minutes [never]")
    add(
        "--max-steps",
        type=int,
        default=0,
        metavar="N",
        help="most steps of an attempt [$MAX_STEPS, or the task's own]",
    )
    add(
        "--eval-every",
        type=int,
        metavar="N",
        help="evaluate on held-out tasks after every N tasks [50; 0, never, with --quick]",
    )
    add("--eval-tasks", type=int, default=100, metavar="N", help="evaluate on at most N held-out tasks [100]")
    add(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="sampling temperature of attempts to learn from; evaluations use 0.7 [0.8]",
    )
    add("--task-seed", type=int, default=0, metavar="N", help="seed of the order of tasks [0]")
    add("--free", action="store_true", help="do not force replies to be tool calls")
    add("--quick", action="store_true", help="a run of about 20 minutes on two cores, with --judge rules")
