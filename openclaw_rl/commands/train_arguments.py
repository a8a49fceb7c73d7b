"""Flags of ``openclaw-rl train``, in a separate module so that help is instant."""

from __future__ import annotations

import argparse


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--env", metavar="NAME", help="toolcall, terminal, … or pkg.module:Class [ENV_TYPE]")
    add("--tasks", default="", metavar="PATH", help="its tasks [those that come with it]")
    add("--difficulty", type=int, metavar="N", help="only tasks that are at most so difficult [all]")
    add("--parallel", type=int, default=0, metavar="N", help="episodes at once [PARALLEL_ENVS, or 8]")
    add("--pool", default="local", metavar="WHERE", help="where they act: local, ray or ray://HOST:PORT")
    add("--attempts", type=int, default=8, metavar="N", help="at each task; they are compared [8]")
    add("--groups", type=int, default=0, metavar="N", help="tasks to attempt in all [until it is stopped]")
    add("--minutes", type=float, default=0, metavar="M", help="end after so long")
    add("--max-steps", type=int, default=0, metavar="N", help="of an episode [MAX_STEPS]")
    add("--eval-every", type=int, metavar="N", help="try held-out tasks every N groups [50; 0 with --quick]")
    add("--eval-tasks", type=int, default=100, metavar="N", help="of them, at most so many [100]")
    add("--task-seed", type=int, default=0, metavar="N", help="of the order of the tasks [0]")
    add("--free", action="store_true", help="do not force the reply to be a call of a tool")
    add("--quick", action="store_true", help="20 minutes on a small machine, with rules as the judge")
