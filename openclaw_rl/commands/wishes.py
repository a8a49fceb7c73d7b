"""``openclaw-rl wishes``: list, reword, pause and resume wishes."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from urllib.parse import quote

from openclaw_rl.commands.client import ServerClient
from openclaw_rl.config import Config
from openclaw_rl.types import Json


def run(options: argparse.Namespace, config: Config) -> int:
    with ServerClient.chosen(options, config) as server:
        if options.action == "list":
            found = server.get("/v1/wishes")
            lines = [_line(wish) for wish in found["data"]]
            print(
                json.dumps(found, indent=2)
                if options.json
                else "\n".join(lines) or "no wishes yet: tell it how to answer better"
            )
            return 0
        changes: Json = {
            "edit": {"text": options.text},
            "pause": {"paused": True},
            "resume": {"paused": False},
            "note": {"noted": True},
            "unnote": {"noted": False},
        }
        if options.id is None or (options.action == "edit" and not options.text):
            words = " TEXT" if options.action == "edit" else ""
            raise ValueError(f"say which: openclaw-rl wishes {options.action} ID{words}")
        print(_line(server.patch(f"/v1/wishes/{quote(options.id, safe='')}", changes[options.action])))
    return 0


def _line(wish: Json) -> str:
    since = datetime.fromtimestamp(wish["created_at"]).strftime("%Y-%m-%d")
    learned = f" in version {wish['learned_in']}" if wish["state"] == "learned" else ""
    why = f" ({wish['reason']})" if wish["reason"] else ""
    times = f"{wish['times']} times" if wish["times"] != 1 else "once"
    note = "" if wish["note"] == "none" else f"; note {wish['note']}"
    asked = f"asked {times} since {since}; {wish['state']}{learned}{why}{note}"
    return f"{wish['id']}  {wish['user']}  {wish['text']}  {asked}"
