"""How often does the served model solve an environment's held-out tasks?"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("env")
    group.add_argument(
        "--env",
        metavar="NAME",
        help="toolcall, terminal, swe, gui, verifiers, openenv, or pkg.module:Class [ENV_TYPE]",
    )
    group.add_argument(
        "--tasks", default="", metavar="PATH", help="file or folder of tasks [the built-in ones]"
    )
    group.add_argument(
        "--split", default="test", choices=("train", "validation", "test", "all"), help="which tasks [test]"
    )
    group.add_argument("--attempts", type=int, default=1, metavar="N", help="attempts at each task [1]")
    group.add_argument(
        "--max-steps",
        type=int,
        default=0,
        metavar="N",
        help="most steps of an attempt [$MAX_STEPS, or the task's own]",
    )
    group.add_argument(
        "--pool",
        default="local",
        metavar="WHERE",
        help="where environments run: local, ray or ray://HOST:PORT",
    )
    group.add_argument("--free", action="store_true", help="do not force replies to be tool calls")
