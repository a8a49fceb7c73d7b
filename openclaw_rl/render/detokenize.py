"""Converts ids to bytes and text, one id at a time, at a constant cost per id.

``TokenBytes`` knows the exact bytes of every token of byte-level and SentencePiece-style
tokenizers. For other decoders the bytes are those of the token decoded alone, which is exact only
where tokens do not depend on their neighbours.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_of_char() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes map to themselves, the rest to U+0100 and up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + index): byte for index, byte in enumerate(hidden)}


_BYTE_OF_CHAR = _byte_of_char()


class TokenBytes:
    """The exact bytes of each token; added tokens give their written form."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added: dict[int, str] = {
            id_: token.content for id_, token in tokenizer.added_tokens_decoder.items()
        }
        self._cache: dict[int, bytes] = {}
        kinds = _decoder_kinds(tokenizer)
        self._convert: Callable[[int, str], bytes] = self._alone
        if "ByteLevel" in kinds:
            self._convert = _byte_level
        elif kinds & {"Metaspace", "ByteFallback"}:
            self._convert = _sentencepiece
        self.strips_first_space = self._convert is _sentencepiece and self._drops_leading_space()

    def __getitem__(self, token_id: int) -> bytes:
        """Ids past the vocabulary (padding rows of the embedding) have no bytes."""
        if token_id not in self._cache:
            self._cache[token_id] = self._bytes(token_id)
        return self._cache[token_id]

    def _bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._tokenizer.convert_ids_to_tokens(token_id) if token_id < len(self._tokenizer) else None
        return b"" if token is None else self._convert(token_id, token)

    def _alone(self, token_id: int, token: str) -> bytes:
        text: str = self._tokenizer.decode([token_id])
        return text.encode()

    def _drops_leading_space(self) -> bool:
        vocabulary = self._tokenizer.get_vocab()
        probe = next((id_ for token, id_ in vocabulary.items() if re.fullmatch("▁[a-zA-Z]+", token)), None)
        return probe is not None and not self._tokenizer.decode([probe]).startswith(" ")


def _byte_level(token_id: int, token: str) -> bytes:
    try:
        return bytes(_BYTE_OF_CHAR[char] for char in token)
    except KeyError:
        return token.encode()


def _sentencepiece(token_id: int, token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace("▁", " ").encode()


def _decoder_kinds(tokenizer: Any) -> set[str]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.decoder is None:
        return set()
    state = json.loads(backend.decoder.__getstate__())
    return {part["type"] for part in (state, *state.get("decoders", ()))}


class StreamDetokenizer:
    """Feeds bytes through a UTF-8 decoder; invalid bytes become U+FFFD.

    Joined output equals decoding all ids at once without those in ``skip``.
    """

    def __init__(self, token_bytes: TokenBytes, skip: Iterable[int]) -> None:
        self._bytes = token_bytes
        self._skip = frozenset(skip)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = token_bytes.strips_first_space

    def feed(self, token_id: int) -> str:
        if token_id in self._skip:
            return ""
        data = self._bytes[token_id]
        if self._at_start and data:
            data, self._at_start = data.removeprefix(b" "), False
        return self._decoder.decode(data)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)
