"""Edits other programs' settings: every change is shown, and the original is kept.

The first change to a file saves a backup next to it. Undoing restores exactly that; if the file was
changed since, only our own entries are removed.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path

from openclaw_rl.connect.client import Edit

_BACKUP = ".before-openclaw-rl"
_BEGIN, _END = "# >>> openclaw-rl", "# <<< openclaw-rl"


def write(edit: Edit, say: Callable[[str], None]) -> bool:
    """True if something changed."""
    before = _read(edit.path)
    after = edit.apply(before)
    if after == before:
        say(f"{edit.path} is set up already.")
        return False
    say(f"{edit.path}: written" if edit.own_folder else _diff(edit.path, before, after))
    backup = backup_of(edit.path)
    if edit.path.exists() and not backup.exists() and not edit.own_folder:
        _write(backup, before, like=edit.path)
        say(f"The file as it was: {backup}")
    _write(edit.path, after, like=edit.path)
    return True


def undo(edit: Edit, say: Callable[[str], None]) -> bool:
    """True if something changed."""
    backup, now = backup_of(edit.path), _read(edit.path)
    original = _read(backup)
    untouched = backup.exists() and edit.apply(original) == now
    after = original if untouched else edit.remove(now, original)
    if after == now:
        say(f"There is nothing of ours in {edit.path}.")
        return False
    say(f"{edit.path}: removed" if edit.own_folder else _diff(edit.path, now, after))
    if after.strip() in ("", "{}") and not backup.exists():
        edit.path.unlink()
        if edit.own_folder and not any(edit.path.parent.iterdir()):
            edit.path.parent.rmdir()
        return True
    _write(edit.path, after, like=edit.path)
    if untouched:
        backup.unlink()
    elif backup.exists():
        say(f"It was changed since, so only our entries were taken out; the file as it was: {backup}")
    return True


def backup_of(path: Path) -> Path:
    return path.with_name(path.name + _BACKUP)


def block(path: Path, lines: str, check: Callable[[str], None] = lambda rest: None) -> Edit:
    """Keeps a marked block of lines at the end of a text file; ``check`` may reject the rest of the file."""

    def remove(text: str, original: str = "") -> str:
        begin, end = text.find(_BEGIN), text.find(_END)
        if begin < 0 or end < begin:
            return text
        rest = text[end + len(_END) :].lstrip("\n")
        kept = text[:begin].rstrip("\n")
        return "\n\n".join(filter(None, (kept, rest.rstrip("\n")))) + "\n" if kept or rest else ""

    def apply(text: str) -> str:
        rest = remove(text)
        check(rest)
        ours = f"{_BEGIN}\n{lines.strip()}\n{_END}\n"
        extended = f"{rest.rstrip()}\n\n{ours}" if rest.strip() else ours
        return text if ours in text else extended

    return Edit(path, apply, remove)


def _diff(path: Path, before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), str(path), f"{path} (changed)", lineterm="", n=2
    )
    return "\n".join(lines)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _write(path: Path, text: str, like: Path) -> None:
    """Atomic. Keeps the file's permissions; a new file is for its owner only, since it holds a key."""
    mode = like.stat().st_mode & 0o777 if like.exists() else 0o600
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path.resolve())
