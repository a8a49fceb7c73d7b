"""How many conversations until the model does what a user wants, and what does it forget meanwhile?

``openclaw-rl eval personalize`` talks to running systems through their public API, as users would: simulated
users (users.py) bring tasks (tasks.py), state their wishes in words, and give no ratings. One arm (arm.py) is
one system, its users and a seed; plan.py runs several in parallel, report.py makes the tables.
"""

from __future__ import annotations

import argparse
from pathlib import Path

METHODS = ("hybrid", "binary", "opd", "untrained", "memory")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this evaluation, in addition to the settings that every command has."""
    group = parser.add_argument_group("personalize")
    group.add_argument(
        "--user", action="append", metavar="USER",
        help="simulated user: a name, FILE.toml, or pkg.module:Class; several users talk at once",
    )  # fmt: skip
    group.add_argument(
        "--methods", help=f"comma-separated algorithms, untrained, memory [{','.join(METHODS)}]"
    )
    group.add_argument("--seeds", type=int, metavar="N", help="runs of each arm [5]")
    group.add_argument("--sessions", type=int, metavar="N", help="conversations per user, at most [72]")
    group.add_argument("--minutes", type=float, metavar="N", help="stop after N minutes")
    group.add_argument(
        "--held-out", type=int, default=24, metavar="N", help="held-out tasks per measurement [24]"
    )
    group.add_argument(
        "--probes", type=int, default=12, metavar="N", help="unrelated tasks of each kind [12]"
    )
    group.add_argument(
        "--then", metavar="USER", help="user with a second wish, who starts when the first is learned"
    )
    group.add_argument(
        "--parallel",
        type=int,
        metavar="N",
        help="systems, or attempts of env, at a time [1; env: $PARALLEL_ENVS]",
    )
    group.add_argument(
        "--quick", action="store_true", help="one user, one seed, 12 sessions: minutes on two cores"
    )
    group.add_argument(
        "--measure", action="store_true", help="only measure whether the model can do it when told"
    )
    group.add_argument(
        "--out", type=Path, metavar="DIR", help="logs, table, plots; resumed if it exists [evals/…]"
    )
    group.add_argument("--url", help="address of a running system; its key is $OPENCLAW_RL_API_KEY")
    group.add_argument("--user-url", help="OpenAI-compatible API that writes what users say")
    group.add_argument("--user-model", help="the model there")
    group.add_argument(
        "--serve-flags", default="", metavar="FLAGS", help="more flags for the systems under test"
    )
