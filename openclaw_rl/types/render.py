"""Between messages and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from openclaw_rl.types.base import Json, Message, Tool


@dataclass(frozen=True, slots=True)
class Delta:
    """What one or more sampled tokens added to the reply, in meaning."""

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
    """JSON text as the model wrote it; it may be invalid, as with every model."""


@dataclass(frozen=True, slots=True)
class Reply:
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class ReplyParser(Protocol):
    """Turns the text of one reply into deltas as it arrives; joined deltas equal the whole."""

    def feed(self, text: str) -> list[Delta]: ...

    def finish(self) -> list[Delta]:
        """Flush what was held back (a tag that never completed is content)."""


#: What ``Renderer`` writes grammars in.
GRAMMAR_DIALECT = "llguidance"


class Renderer(Protocol):
    """Messages to tokens and tokens to meaning, for one model family."""

    stop_ids: frozenset[int]

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, thinking: bool | None = None
    ) -> list[int]:
        """Prompt ids, ending where the assistant's reply begins."""

    def parser(self, prompt_ids: Sequence[int], tools: Sequence[Tool] = ()) -> ReplyParser: ...

    def detokenizer(self) -> Detokenizer: ...

    def tool_grammar(self, tools: Sequence[Tool], max_chars: int = 512) -> str:
        """A grammar for exactly one call of one of the tools; ``max_chars`` as below."""

    def json_grammar(self, schema: Json, max_chars: int = 512) -> str:
        """A grammar for one JSON value of the schema; texts it leaves open get this limit."""

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token (control tokens: their written form)."""

    def encode(self, text: str) -> list[int]:
        """Bare text, none of which becomes a control token."""


class Detokenizer(Protocol):
    """Ids to text, one id at a time; never emits half a character."""

    def feed(self, token_id: int) -> str: ...

    def finish(self) -> str: ...
