"""``openclaw-rl forget``: delete a turn, a session, a wish or a user from disk and unlearn it."""

from __future__ import annotations

import argparse
import json
import sys

from openclaw_rl.config import Config
from openclaw_rl.processes.backups import REACHED
from openclaw_rl.processes.forgetting import Forgetting
from openclaw_rl.processes.parts import open_ledgers, open_store

_LATER = (
    "It is erased there when something is forgotten while the file is in its place, or when it is restored."
)


def run(options: argparse.Namespace, config: Config) -> int:
    """Works on the data folder itself, with or without a running server, which follows at once."""
    ledgers = open_ledgers(config)
    try:
        receipt = Forgetting(config.home, ledgers, open_store(config)).forget(options.what, options.id)
    finally:
        ledgers.close()
    if receipt is None:
        raise ValueError(
            f"there is no {options.what} {options.id!r}; 'openclaw-rl sessions' lists what there is"
        )
    print(json.dumps(receipt, indent=2))
    for file, outcome in receipt["backups"].items():
        if outcome not in REACHED:
            print(f"The backup {file} still holds it ({outcome}). {_LATER}", file=sys.stderr)
    for file, outcome in receipt["exports"].items():
        if outcome not in REACHED:
            print(f"The export {file} may still hold it ({outcome}); delete it yourself.", file=sys.stderr)
    return 0
