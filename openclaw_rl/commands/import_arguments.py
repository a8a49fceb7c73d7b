"""Flags of ``openclaw-rl import``."""

from __future__ import annotations

import argparse

from openclaw_rl.commands.flags import complete_files
from openclaw_rl.scopes import check_scope
from openclaw_rl.types import EVERYONE

SETTINGS = (
    "home",
    "ledger_url",
    "policies",
    "policy_scope",
    "redact",
    "lora_rank",
    "lora_alpha",
    "lora_targets",
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    paths = command.add_argument(
        "paths", nargs="+", metavar="PATH", help="files or folders; or: adapter FOLDER, of a PEFT adapter"
    )
    complete_files(paths)
    command.add_argument("--user", default="default", help="whose conversations these were [default]")
    command.add_argument("--scope", type=check_scope, default=EVERYONE, help="of an adapter [everyone]")
