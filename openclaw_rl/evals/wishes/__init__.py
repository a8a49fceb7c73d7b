"""Wishes that nobody tuned for: are they learned, and is nothing else lost?

``openclaw-rl eval wishes`` runs systems as deployed. A strict simulated user with a wish (wish.py) talks
through the public API (arm.py); between conversations, held-out requests in trained and unseen forms, and
checkable items (items.py), measure the model. The reference is the hinted base: the untrained model whose
prompt states the wish.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this evaluation, in addition to those that all evaluations share."""
    group = parser.add_argument_group("wishes")
    group.add_argument(
        "--wishes", metavar="NAMES", help="comma-separated names, 'written', or drawn:N [drawn:12]"
    )
    group.add_argument("--draw", metavar="TEXT", help="seed of the random draw of wishes [the commit's hash]")
    group.add_argument("--items", type=int, default=400, metavar="N", help="checkable tasks to try [400]")
    group.add_argument(
        "--stories",
        default="alone",
        metavar="NAMES",
        help="alone, together (three people at once), or once it is learned: taken-back, second (another "
        "wish), against (a contrary one)",
    )
    group.add_argument("--note", action="store_true", help="also measure with a note in the system prompt")
