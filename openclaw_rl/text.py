"""Text as people and clients send it: repairs what cannot be encoded, splits sentences, recognises scripts.

JSON may contain lone surrogates, UTF-8 may not. Clients that cut strings by length (most JavaScript ones)
sometimes send them. They become U+FFFD for the model and in all views; the ledger keeps the request as sent.
"""

from __future__ import annotations

import json
import re
from typing import Any

#: Control characters except line feeds and tabs, and bidirectional controls.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

#: The end of a sentence does not count inside quotes.
_PIECE = re.compile(
    r"\"[^\"\n]{0,200}\"|「[^」\n]{0,200}」|“[^”\n]{0,200}”|(?<!\w)'[^'\n]{1,200}'(?!\w)|(?P<end>[.!?…]+(?=\s)|[。！？]+|\n+)|.",
    re.DOTALL,
)
#: Recognised by their script; Japanese is checked before Chinese, whose characters it uses.
SCRIPTS = {
    "japanese": re.compile(r"[\u3040-\u30ff]"),
    "chinese": re.compile(r"[\u4e00-\u9fff]"),
    "russian": re.compile(r"[а-яё]", re.IGNORECASE),
}


def well_formed(value: Any) -> Any:
    """A JSON value with every lone surrogate replaced."""
    if isinstance(value, str):
        return value if value.isascii() else _repair(value)
    if isinstance(value, dict):
        return {well_formed(key): well_formed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [well_formed(item) for item in value]
    return value


def printable(value: Any) -> Any:
    """A JSON value with control characters escaped, so that its text cannot control a terminal."""
    if isinstance(value, str):
        return value if value.isprintable() else _CONTROL.sub(lambda found: ascii(found[0])[1:-1], value)
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [printable(item) for item in value]
    return value


def plural(number: int, one: str, several: str = "") -> str:
    """``1 reply``, ``2 replies``."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def toml_string(text: str) -> str:
    """As a value in a TOML file, whatever is in it."""
    # JSON's escapes are TOML's, too; but TOML also wants this one, and no surrogate pairs.
    return json.dumps(_repair(text), ensure_ascii=False).replace("\x7f", "\\u007f")


def _repair(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def sentences(text: str) -> list[str]:
    """The sentences of a text; a quoted sentence belongs to the one around it."""
    found, now = [], ""
    for piece in _PIECE.finditer(text):
        now += piece.group()
        if piece["end"]:
            found.append(now.strip())
            now = ""
    return [sentence for sentence in [*found, now.strip()] if sentence]


def by_script(text: str) -> str | None:
    """The language, if its script identifies it."""
    return next((name for name, script in SCRIPTS.items() if script.search(text)), None)
