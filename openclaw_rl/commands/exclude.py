"""``openclaw-rl exclude | include``: exclude turns and sessions from training, or undo it."""

from __future__ import annotations

import argparse
from urllib.parse import quote

from openclaw_rl.commands.client import ServerClient
from openclaw_rl.config import Config


def exclude(options: argparse.Namespace, config: Config) -> int:
    with ServerClient.chosen(options, config) as server:
        done = server.post(f"{_path(options)}/exclude")
    learned = len(done.get("learned_already", ()))
    print(f"this {options.what} will not be learned from; take it back: "
          f"openclaw-rl include {options.what} {options.id}")  # fmt: skip
    if learned:
        print(f"{learned} of its turns had been learned from before; a rollback undoes that")
    return 0


def include(options: argparse.Namespace, config: Config) -> int:
    with ServerClient.chosen(options, config) as server:
        server.post(f"{_path(options)}/include")
    print(f"this {options.what} may be learned from again")
    return 0


def _path(options: argparse.Namespace) -> str:
    return f"/v1/{options.what}s/{quote(options.id, safe='')}"
