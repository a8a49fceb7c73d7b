"""Edits settings in a JSON file by key path.

Removing an entry restores the value from before our first change, if there was one. A file that is
not plain JSON (JSON5: comments, trailing commas) is rejected: rewriting it would lose comments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from openclaw_rl.connect.client import Edit

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    keys: tuple[str, ...]
    value: Any
    how: Literal["set", "default", "member", "listed"] = "set"
    """Set; set if missing; add to a list; add to a list (or an object's keys) if it exists."""
    prefix: str | None = None
    """Other values that count as ours: strings with this prefix; if it is empty, any value."""

    def is_ours(self, value: Any) -> bool:
        if self.prefix is None:
            return bool(value == self.value)
        return self.prefix == "" or (isinstance(value, str) and value.startswith(self.prefix))


def json_entries(path: Path, entries: Mapping[tuple[str, ...], Any] | Sequence[Entry]) -> Edit:
    """An edit that adds the entries, and removes those that are still ours."""
    if isinstance(entries, Mapping):
        entries = [Entry(keys, value) for keys, value in entries.items()]

    def apply(text: str) -> str:
        tree = parse(path, text)
        for entry in entries:
            _put(path, tree, entry)
        return text if tree == parse(path, text) else to_text(tree)

    def remove(text: str, original: str) -> str:
        tree, before = parse(path, text), parse(path, original)
        for entry in entries:
            _take_out(tree, before, entry.keys, entry)
        return text if tree == parse(path, text) else to_text(tree)

    return Edit(path, apply, remove)


def _put(path: Path, tree: Tree, entry: Entry) -> None:
    *parents, last = entry.keys
    table = tree
    for key in parents:
        if entry.how == "listed" and key not in table:
            return
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ValueError(f"{path}: {key} is no object; change it by hand")
    if entry.how == "set":
        table[last] = entry.value
    elif entry.how == "default":
        table.setdefault(last, entry.value)
    elif entry.how == "member" or last in table:
        _include(path, last, table.setdefault(last, []), entry.value)


def _include(path: Path, key: str, members: Any, value: Any) -> None:
    if isinstance(members, dict):
        members.setdefault(value, {})
    elif not isinstance(members, list):
        raise ValueError(f"{path}: {key} is no list; change it by hand")
    elif value not in members:
        members.append(value)


def _take_out(now: Tree, before: Any, keys: tuple[str, ...], entry: Entry) -> None:
    """Remove the value if it is ours, and objects that held nothing else."""
    key = keys[0]
    before = before if isinstance(before, dict) else {}
    inner = now.get(key)
    if len(keys) > 1:
        if isinstance(inner, dict) and inner:
            _take_out(inner, before.get(key), keys[1:], entry)
            if not inner and key not in before:
                del now[key]
    elif entry.how in ("member", "listed"):
        _exclude(now, before, key, entry.value)
    elif key in now and entry.is_ours(inner):
        if key in before:
            now[key] = before[key]
        else:
            del now[key]


def _exclude(now: Tree, before: Tree, key: str, value: Any) -> None:
    members = now.get(key)
    if isinstance(members, list | dict) and value in members and value not in before.get(key, []):
        if isinstance(members, list):
            members.remove(value)
        else:
            del members[value]
        if not members and key not in before:
            del now[key]


def parse(path: Path, text: str) -> Tree:
    try:
        tree = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(
            f"{path} is not plain JSON ({error}); rewriting it would lose comments, so it is left as it is. "
            "The same command without --write prints what to put in by hand"
        ) from None
    if not isinstance(tree, dict):
        raise ValueError(f"{path} is no JSON object; set it up by hand")
    return tree


def to_text(tree: Tree) -> str:
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"
