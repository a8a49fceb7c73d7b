"""Converting between messages and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from openclaw_rl.types.base import Json, Message, Tool


@dataclass(frozen=True, slots=True)
class Delta:
    """What one or more sampled tokens added to the parsed reply."""

    content: str = ""
    reasoning: str = ""
    tool_index: int | None = None
    """Set when this delta belongs to tool call number ``tool_index``."""
    tool_name: str = ""
    """Only on the first delta of a tool call."""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str
    """JSON text as the model wrote it; it may be invalid."""


@dataclass(frozen=True, slots=True)
class Reply:
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class ReplyParser(Protocol):
    """Parses one reply's text into deltas as it arrives; the joined deltas equal the whole reply."""

    def feed(self, text: str) -> list[Delta]: ...

    def finish(self) -> list[Delta]:
        """Flush buffered text (an incomplete tag becomes content)."""


#: The dialect of the grammars that ``Renderer`` writes.
GRAMMAR_DIALECT = "llguidance"


class Renderer(Protocol):
    """Renders messages to tokens and parses tokens into replies, for one model family."""

    stop_ids: frozenset[int]

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, thinking: bool | None = None
    ) -> list[int]:
        """Prompt ids, up to where the assistant's reply begins."""

    def parser(self, prompt_ids: Sequence[int], tools: Sequence[Tool] = ()) -> ReplyParser: ...

    def detokenizer(self) -> Detokenizer: ...

    def tool_grammar(self, tools: Sequence[Tool], max_chars: int = 512) -> str:
        """A grammar for exactly one call of one of the tools; ``max_chars`` as in ``json_grammar``."""

    def json_grammar(self, schema: Json, max_chars: int = 512) -> str:
        """A grammar for one JSON value of the schema; ``max_chars`` limits strings the schema does not."""

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token (for control tokens, their written form)."""

    def encode(self, text: str) -> list[int]:
        """Encode plain text; none of it becomes a control token."""


class Detokenizer(Protocol):
    """Decodes ids to text, one id at a time; never emits half a character."""

    def feed(self, token_id: int) -> str: ...

    def finish(self) -> str: ...
