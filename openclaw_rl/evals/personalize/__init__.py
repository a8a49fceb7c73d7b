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
        help="who talks, all at once if given several times: a name, FILE.toml, or pkg.module:Class",
    )  # fmt: skip
    group.add_argument(
        "--methods", help=f"comma-separated algorithms, untrained, memory [{','.join(METHODS)}]"
    )
    group.add_argument("--seeds", type=int, metavar="N", help="runs of each arm [5]")
    group.add_argument("--sessions", type=int, metavar="N", help="per user at most [72]")
    group.add_argument("--minutes", type=float, metavar="N", help="end after so long, wherever the arms are")
    group.add_argument("--held-out", type=int, default=24, metavar="N", help="held-out tasks per look [24]")
    group.add_argument("--probes", type=int, default=12, metavar="N", help="other tasks of each kind [12]")
    group.add_argument("--then", metavar="USER", help="a second wish, taught when the first is learned")
    group.add_argument(
        "--parallel",
        type=int,
        metavar="N",
        help="systems, or episodes of env, at a time [1; env: PARALLEL_ENVS]",
    )
    group.add_argument(
        "--quick", action="store_true", help="one user, one seed, 12 sessions: minutes on two cores"
    )
    group.add_argument(
        "--measure", action="store_true", help="only: can the model do what users want when told?"
    )
    group.add_argument(
        "--out", type=Path, metavar="DIR", help="logs, table, plots; resumed if it exists [evals/…]"
    )
    group.add_argument("--url", help="a system that runs already; its key comes from OPENCLAW_RL_API_KEY")
    group.add_argument("--user-url", help="an OpenAI-compatible API that finds the users' words")
    group.add_argument("--user-model", help="the model there")
    group.add_argument(
        "--serve-flags", default="", metavar="FLAGS", help="more flags for the systems under test"
    )
