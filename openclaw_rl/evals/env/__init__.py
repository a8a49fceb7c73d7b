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
    group.add_argument("--tasks", default="", metavar="PATH", help="its tasks [those that come with it]")
    group.add_argument(
        "--split", default="test", choices=("train", "validation", "test", "all"), help="which of them [test]"
    )
    group.add_argument("--attempts", type=int, default=1, metavar="N", help="at each task [1]")
    group.add_argument("--max-steps", type=int, default=0, metavar="N", help="of an episode [MAX_STEPS]")
    group.add_argument(
        "--pool", default="local", metavar="WHERE", help="where they act: local, ray or ray://HOST:PORT"
    )
    group.add_argument("--free", action="store_true", help="do not force the reply to be a call of a tool")
