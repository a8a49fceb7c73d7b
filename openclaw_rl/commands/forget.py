"""``openclaw-rl forget``: delete a turn, a session, a wish or a user from disk and unlearn it."""

from __future__ import annotations

import argparse
import json
import sys

from openclaw_rl.config import Config
from openclaw_rl.processes.backups import REACHED
from openclaw_rl.processes.forgetting import Forgetting
from openclaw_rl.processes.parts import open_ledgers, open_store
from openclaw_rl.text import plural
from openclaw_rl.types import BASE_VERSION, Json

_LATER = (
    "It is erased there when something is forgotten while the file is in its place, or when it is restored."
)
_LISTED = {"turn": "sessions", "session": "sessions", "wish": "wishes", "user": "users list"}


def run(options: argparse.Namespace, config: Config) -> int:
    """Works on the data folder itself, with or without a running server, which follows at once."""
    ledgers = open_ledgers(config)
    try:
        receipt = Forgetting(config.home, ledgers, open_store(config)).forget(options.what, options.id)
    finally:
        ledgers.close()
    if receipt is None:
        listed = f"'openclaw-rl {_LISTED[options.what]}' lists what there is"
        raise ValueError(f"there is no {options.what} {options.id!r}; {listed}")
    print(json.dumps(receipt, indent=2) if options.json else summarise(receipt))
    for file, outcome in receipt["backups"].items():
        if outcome not in REACHED:
            print(f"The backup {file} still holds it ({outcome}). {_LATER}", file=sys.stderr)
    for file, outcome in receipt["exports"].items():
        if outcome not in REACHED:
            print(f"The export {file} may still hold it ({outcome}); delete it yourself.", file=sys.stderr)
    return 0


def summarise(receipt: Json) -> str:
    """What was erased, and what that means for the weights."""
    lines = [f"Erased {plural(receipt['num_turns'], 'turn')}."]
    if versions := receipt["versions"]:
        names = f"Version{'s' * (len(versions) > 1)} {', '.join(map(str, versions))}"
        lines.append(
            f"{names} had used {'it' if receipt['num_turns'] == 1 else 'them'} and cannot serve any more."
        )
    for scope, version in receipt["back_to"].items():
        serves = f"version {version}" if version != BASE_VERSION else "the base model"
        lines.append(f"In {scope}, {serves} answers; what is left is being trained again in the background.")
    return "\n".join([*lines, f"Receipt: {receipt['id']}; --json prints it."])
