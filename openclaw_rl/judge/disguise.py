"""Undoes obfuscation: look-alike letters, spaced-out letters, encoded words, padding.

``reveal`` returns a text as a person reads it; ordinary text is unchanged. ``hidden_forms`` returns decodings
of a line that only a machine would try (ROT13, reversed, digits for letters), so that an instruction can be
recognised in them without changing the text.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
import unicodedata
from collections.abc import Iterator

_INVISIBLE = re.compile(r"[\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\u00ad\U000e0000-\U000e007f]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
#: Letters of other Unicode blocks that imitate ordinary ones; superscripts and fractions stay.
_STYLED = re.compile(r"[\uff01-\uff5e\U0001d400-\U0001d7ff\u24b6-\u24e9\U0001f130-\U0001f149]")
#: Combining lines through and under letters.
_STRUCK = re.compile(r"[\u0330-\u0338]")
_TWINS = str.maketrans(
    "АВЕКМНОРСТУХаеорсухіјѕԁһΑΒΕΖΗΙΚΜΝΟΡΤΥΧο",
    "ABEKMHOPCTYXaeopcyxijsdhABEZHIKMNOPTYXo",
)
_MIXED = re.compile(r"\b(?=\w*[A-Za-z])(?=\w*[\u0370-\u052f])\w+")
_APART = re.compile(r"(?<!\w)(?:\w ){3,}\w(?!\w)")
_ENCODED = re.compile(r"\b(?:0x)?[0-9a-fA-F]{24,}\b|\b[A-Za-z0-9+/]{20,}={0,2}(?![\w=])")
_GAP = re.compile(r"\n(?:[^\S\n]*\n){15,}")
_AGAIN = re.compile(r"(\S[^\n]{0,80}?\s)\1{11,}|([^\s\w.\-=_*#])\2{39,}")
_DIGITS = str.maketrans("013457@$", "oieastas")


def reveal(text: str) -> str:
    text = _INVISIBLE.sub("", unicodedata.normalize("NFC", text))
    text = _STYLED.sub(lambda found: unicodedata.normalize("NFKC", found.group()), _CONTROL.sub(" ", text))
    text = _MIXED.sub(lambda found: found.group().translate(_TWINS), _STRUCK.sub("", text))
    text = _APART.sub(lambda found: found.group().replace(" ", ""), text)
    text = _ENCODED.sub(lambda found: " " if _is_encoded(found.group()) else found.group(), text)
    # No user continues after a large gap or a long run of repetitions: what follows a gap is dropped.
    before, gap, _ = text.partition(found.group() if (found := _GAP.search(text)) else "\0")
    text = before if gap and before.strip() else text
    return _AGAIN.sub(" ", text)


def hidden_forms(line: str) -> Iterator[str]:
    yield codecs.encode(line, "rot13")
    yield line[::-1]
    yield line.translate(_DIGITS)


def _is_encoded(run: str) -> bool:
    """Whether the run is plain text in hexadecimal or base64, not a hash, a path or a long word."""
    try:
        digits = run.removeprefix("0x")
        raw = bytes.fromhex(digits) if not set(digits.lower()) - set("0123456789abcdef") else b""
        raw = raw or base64.b64decode(run + "=" * (-len(run) % 4), validate=True)
        return sum(character.isalpha() or character.isspace() for character in raw.decode()) >= 0.8 * len(raw)
    except (ValueError, binascii.Error):
        return False
