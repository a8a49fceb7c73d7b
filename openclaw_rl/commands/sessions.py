"""``openclaw-rl sessions | turn | verdict``: show conversations, turns and verdicts."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from typing import Any
from urllib.parse import quote

from openclaw_rl.commands.client import ServerClient
from openclaw_rl.config import Config
from openclaw_rl.text import plural
from openclaw_rl.types import Json


def sessions(options: argparse.Namespace, config: Config) -> int:
    if options.session:
        found = _get(options, config, f"/v1/sessions/{quote(options.session, safe='')}", text="true")
        lines = [_turn_line(turn) for turn in found["turns"]]
    else:
        found = _get(options, config, "/v1/sessions", limit=options.limit, query=options.search)
        lines = [
            f"{_when(one['opened_at'])}  {plural(one['num_turns'], 'turn'):>10}  {one['id']}  {one['title']}"
            for one in found["data"]
        ]
    print(json.dumps(found, indent=2) if options.json else "\n".join(lines) or "no conversations yet")
    return 0


def turn(options: argparse.Namespace, config: Config) -> int:
    found = _get(options, config, f"/v1/turns/{quote(options.id, safe='')}/tokens")
    print(json.dumps(found, indent=2) if options.json else _describe(found))
    return 0


def verdict(options: argparse.Namespace, config: Config) -> int:
    found = _get(options, config, f"/v1/turns/{quote(options.id, safe='')}")
    if options.json:
        print(json.dumps(found["verdict"], indent=2))
    else:
        print(_verdict(found) or f"no verdict: {found['reason']}")
    return 0


def _get(options: argparse.Namespace, config: Config, path: str, **params: Any) -> Json:
    with ServerClient.chosen(options, config) as server:
        return server.get(path, **params)


def _turn_line(found: Json) -> str:
    said = " ".join((found["reply"].get("content") or "").split())[:80]
    return f"{found['id']}  {_state(found):<8}  v{found['policy_version']}  {said}"


def _describe(found: Json) -> str:
    pushed = [token for token in found["tokens"] if token["advantage"]]
    up = sum(token["advantage"] > 0 for token in pushed)
    lines = [
        *(f"{message['role']}: {message['content']}" for message in found["input"]),
        f"reply by version {found['policy_version']}: {found['reply'].get('content') or ''}",
        f"state: {_state(found)}" + (f" ({found['reason']})" if found["reason"] else ""),
        _verdict(found) or "no verdict yet",
        f"learned from in version {found['step']}" if found["step"] else "not learned from",
    ]
    if pushed:
        lines.append(f"tokens: {up} pushed up, {len(pushed) - up} pushed down, of {len(found['tokens'])}")
    if found["taught"]:
        lines.append("answers that were learned instead:")
        lines += [f"  {one['asked']}\n    → {one['answer']}" for one in found["taught"]]
    return "\n".join(lines)


def _state(found: Json) -> str:
    """In the API, turns that cannot be used are excluded, too; here that is what a person does."""
    return "not used" if found["state"] == "excluded" and not found["excluded"] else str(found["state"])


def _verdict(found: Json) -> str:
    said = found["verdict"]
    if said is None:
        return ""
    votes = f", votes {said['votes']}" if said["votes"] else ""
    hints = "".join(f"\n  hint: {hint}" for hint in said["hints"])
    return (
        f"verdict: {said['score']:+d} by {said['source']}, confidence {said['confidence']:.2f}{votes}"
        f"{': ' + said['reason'] if said['reason'] else ''}{hints}"
    )


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
