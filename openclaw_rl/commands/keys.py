"""``openclaw-rl keys``: API keys, one per user. Listing creates none."""

from __future__ import annotations

import argparse
import os
import sys

from openclaw_rl.config import Config
from openclaw_rl.serve.auth import DEFAULT_USER, KeyRing


def run(options: argparse.Namespace, config: Config) -> int:
    path = config.people / "keys.json"
    if options.action == "list":
        _list(KeyRing(path, create=False))
        return 0
    if not options.user:
        raise ValueError(f"keys {options.action} needs a user name")
    if options.action == "add":
        print(KeyRing(path).add(options.user, options.same_person))
    else:
        KeyRing(path, create=False).remove(options.user)
    return 0


def _list(ring: KeyRing) -> None:
    for user in ring.users:
        print(f"{user}\t{ring.key_of(user)}")
    if os.environ.get("OPENCLAW_RL_API_KEY"):
        print(f"OPENCLAW_RL_API_KEY is set and counts as the key of {DEFAULT_USER!r}", file=sys.stderr)
    elif not ring.users:
        print(f"no keys in {ring.path.parent} yet; the first start makes one", file=sys.stderr)
