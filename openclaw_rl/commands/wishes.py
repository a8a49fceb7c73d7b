"""``openclaw-rl wishes``: list, reword, pause and resume wishes; write them as a skill for other agents."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from urllib.parse import quote

from openclaw_rl.commands.client import ServerClient
from openclaw_rl.config import Config
from openclaw_rl.connect.client import Edit
from openclaw_rl.connect.files import undo, write
from openclaw_rl.skill import is_ours
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
        if options.action == "skill":
            return _skill(server, options)
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


def _skill(server: ServerClient, options: argparse.Namespace) -> int:
    """Print the proposal with its sources; ``--to`` approves it, ``--undo`` takes it back."""
    if options.undo and options.to is None:
        raise ValueError("say where it was written: openclaw-rl wishes skill --to FOLDER --undo")
    found = server.get("/v1/wishes/skill")
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    if options.to is not None:
        path = options.to.expanduser() / "SKILL.md"
        change = Edit(path, lambda before: found["text"] or before, lambda now, original: original)
        if not options.undo and path.exists() and is_ours(path.read_text(encoding="utf-8")):
            undo(change, lambda said: None)  # an older proposal is not what to come back to
        return 0 if (undo if options.undo else write)(change, print) else 1
    for wish in found["wishes"]:
        print(f"# corrected {wish['times']} times, in replies {', '.join(wish['turns'])}: {wish['text']}")
    print(found["text"] or "nothing was corrected twice yet", end="" if found["text"] else "\n")
    return 0


def _line(wish: Json) -> str:
    since = datetime.fromtimestamp(wish["created_at"]).strftime("%Y-%m-%d")
    learned = f" in version {wish['learned_in']}" if wish["state"] == "learned" else ""
    why = f" ({wish['reason']})" if wish["reason"] else ""
    times = f"{wish['times']} times" if wish["times"] != 1 else "once"
    note = "" if wish["note"] == "none" else f"; note {wish['note']}"
    state = wish["state"]
    if state == "not yet":
        state = "not learned yet" if wish["reason"] else "being learned"
    asked = f"asked {times} since {since}; {state}{learned}{why}{note}"
    return f"{wish['id']}  {wish['user']}  {wish['text']}  {asked}"
