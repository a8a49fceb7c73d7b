"""Reactions to messages: the score of an emoji, and notices that clients write into a conversation.

A notice is about the message it names, which is rarely the latest: chat clients report reactions with the
next message, by an id that only they know. So it rates a reply only if it quotes that reply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_UP = "👍 ❤ ♥ 🧡 💛 💚 💙 💜 🔥 🎉 👏 🙏 💯 😍 🥰 🤩 ✅ ✔ ⭐ 🌟 🏆 👌 🙌 💪"
_DOWN = "👎 😡 😠 🤬 💩 🤮 🤢 ❌ ✖ 😤 🙅"
_UP_NAMES = (
    "+1 thumbsup thumbs_up like love heart red_heart tada clap fire 100 white_check_mark ok_hand raised_hands"
)
_DOWN_NAMES = "-1 thumbsdown thumbs_down dislike angry rage poop hankey x no_good vomiting"
_SCORES = {
    **dict.fromkeys([*_UP.split(), *_UP_NAMES.split()], 1),
    **dict.fromkeys([*_DOWN.split(), *_DOWN_NAMES.split()], -1),
}
#: Skin tones and variation selectors.
_TONES = re.compile(r"[\U0001f3fb-\U0001f3ff\ufe0e\ufe0f]|::skin-tone-\d")
_NOTICE = re.compile(
    r"^[^\S\n]*(?:system(?: \([\w ]+\))?:[^\S\n]*)?(?:\[[^\]\n]{1,60}\][^\S\n]*)?"
    r"(?:(?:[\w.-]+ ){0,2}reactions? (?:added|removed|changed|updated)\b[^\n]*"
    r"|[^\n:]{1,60} (?:reacted|removed (?:a|their|the) reaction)\b[^\n]*\b(?:to|with|from|on)\b[^\n]*"
    r"|\[(?:reacted with|removed reaction) [^\]\n]{1,200}\])$",
    re.IGNORECASE | re.MULTILINE,
)
_REMOVED = re.compile(r"\bremoved\b", re.IGNORECASE)
_QUOTED = re.compile(r"[\"“„«]([^\"”“»\n]{12,})[\"”“»]")
_SHORTCODE = re.compile(r":([\w+-]+):")


def score_of(emoji: str) -> int | None:
    """+1 or −1; None for an ambiguous one, such as 👀 or 😂."""
    return _SCORES.get(_TONES.sub("", emoji.strip()).strip(":").lower())


def split_notices(text: str) -> tuple[str, list[str]]:
    """(The person's text, the notices of reactions)."""
    notices = [found.group().strip() for found in _NOTICE.finditer(text)]
    return (_NOTICE.sub("", text).strip(), notices) if notices else (text, [])


def rating_of(notices: Sequence[str], reply: str, earlier: Sequence[str] = ()) -> int | None:
    """The rating by notices that quote this reply and no earlier one; the last one counts."""
    said = None
    for notice in notices:
        if (quote := _QUOTED.search(notice)) is None:
            continue
        words = _folded(quote[1].removesuffix("…").removesuffix("..."))
        if words and words in _folded(reply) and not any(words in _folded(text) for text in earlier):
            score = _score_in(notice)
            said = None if score is not None and _REMOVED.search(notice) else score or said
    return said


def _score_in(notice: str) -> int | None:
    """The score of the emoji outside the quotation; None if there are contradictory ones."""
    outside = _TONES.sub("", _QUOTED.sub(" ", notice))
    found = {score for mark, score in _SCORES.items() if not mark.isascii() and mark in outside}
    found |= {_SCORES[name.lower()] for name in _SHORTCODE.findall(outside) if name.lower() in _SCORES}
    return found.pop() if len(found) == 1 else None


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
