"""What a person corrects often, as a ``SKILL.md`` for other agents: proposed here, approved by writing it.

The words are the person's own. Wishes that they refused as a note, took back or paused are left out; editing
a wish edits its line.
"""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.types import Json

#: Corrected in this many replies, a wish is no passing remark.
OFTEN = 2
#: So that the skill stays within a few hundred tokens.
_MOST, _MAX_CHARS = 16, 200
_STATES = ("learned", "not yet", "not possible")
_TITLE = "# How this person wants replies"
_HEAD = f"""\
---
name: how-{{name}}-wants-replies
description: How this person wants replies, in their own words. Read it before you write to them.
---

{_TITLE}

"""
_END = """
These are wishes, not tasks. What the person asks for in the conversation comes first.
"""


def often_corrected(wishes: Sequence[Json]) -> list[Json]:
    """Those that belong in the skill, the most often corrected first."""
    found = [w for w in wishes if w["times"] >= OFTEN and w["state"] in _STATES and w["note"] != "refused"]
    return sorted(found, key=lambda wish: -wish["times"])[:_MOST]


def skill_text(wishes: Sequence[Json], user: str) -> str:
    """The file, for those wishes; empty without any."""
    name = "".join(char if char.isalnum() and char.isascii() else "-" for char in user.lower())
    lines = [f"- {' '.join(wish['text'].split())[:_MAX_CHARS]}\n" for wish in wishes]
    head = _HEAD.format(name="the-owner" if user == "default" else name)
    return head + "".join(lines) + _END if lines else ""


def is_ours(text: str) -> bool:
    return text.startswith("---\nname: how-") and _TITLE in text
