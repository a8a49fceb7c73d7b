"""What the stages exchange, and the protocols they plug into.

Plain dataclasses and Protocols: no pydantic, no torch, no web library, so that every stage and
every machine can import it. A log-prob here is always one that an engine produced for exactly
the token it stands beside; nothing in this file pads, guesses or re-tokenises.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, Protocol

Json = dict[str, Any]

#: One chat message in the internal form, whatever dialect it came in:
#: ``role`` (system | user | assistant | tool), ``content`` (str), and where present
#: ``reasoning`` (str), ``tool_calls`` ([{id, name, arguments}], arguments a JSON string as the
#: client or the model wrote it), ``tool_call_id`` and ``name``.
Message = dict[str, Any]

#: A tool in the internal form: ``name``, ``description``, ``parameters`` (a JSON schema).
Tool = dict[str, Any]

FinishReason = Literal["stop", "length", "cancelled"]
TurnKind = Literal["main", "side", "unknown"]
BASE_VERSION = 0


class Priority(IntEnum):
    """Lower runs first: people before the judge before environments."""

    LIVE = 0
    JUDGE = 1
    ENVIRONMENT = 2


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    prompt_ids: list[int]
    sampling: SamplingParams
    stop_ids: frozenset[int] = frozenset()
    """Sampling one of these ends the reply; it is part of the sampled ids."""
    policy_version: int | None = None
    """None takes the version being served when the request starts."""
    priority: Priority = Priority.LIVE
    top_logprobs: int = 8
    """How many raw alternatives to keep per token."""
    grammar: str | None = None
    """A grammar that the reply must follow, in llguidance's dialect of Lark."""


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token, exactly as the engine saw it."""

    id: int
    logprob: float
    """Raw: temperature 1, no truncation, no grammar."""
    sampled_logprob: float
    """Under the distribution actually sampled from."""
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]
    """The raw top-k, best first."""
    policy_version: int
    forced: bool = False
    """A grammar left no choice; carries no training signal."""
    finish_reason: FinishReason | None = None
    """Set on the last token only."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Raw log-probs of given tokens: entry i belongs to ``token_ids[start + i]``."""

    logprobs: list[float]
    top_ids: list[list[int]]
    top_logprobs: list[list[float]]
    hidden: list[float] | None = None
    """The state that predicts the last token, after the layer that was asked for."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    streaming: bool = True
    scores_top_k: bool = True
    adapters: bool = True
    hidden_states: bool = False
    full_weights: bool = False
    grammars: bool = False


@dataclass(frozen=True, slots=True)
class EngineStatus:
    num_running: int
    num_waiting: int
    cached_tokens: int
    versions: tuple[int, ...]
    serving_version: int


class Engine(Protocol):
    """Generates and scores. Loading a version never blocks a request in flight."""

    capabilities: Capabilities
    context_length: int

    def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        """Stream tokens; closing the iterator cancels the work."""

    async def score(
        self,
        token_ids: Sequence[int],
        start: int,
        top_k: int = 0,
        policy_version: int = BASE_VERSION,
        priority: Priority = Priority.JUDGE,
        hidden_layer: int | None = None,
    ) -> Scores: ...

    async def load(self, version: int, path: Path) -> None: ...

    async def serve_version(self, version: int) -> None:
        """New requests take this version from now on."""

    async def unload(self, version: int) -> None: ...

    def check_grammar(self, grammar: str) -> None:
        """Raises ValueError that says what is wrong with it."""

    def status(self) -> EngineStatus: ...

    async def close(self) -> None: ...


# --- rendering -------------------------------------------------------------------------------


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


class Detokenizer(Protocol):
    """Ids to text, one id at a time; never emits half a character."""

    def feed(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


# --- capture ---------------------------------------------------------------------------------


@dataclass(slots=True)
class TurnRecord:
    """One reply with everything needed to judge and train it."""

    id: str
    session_id: str
    user: str
    dialect: str
    kind: TurnKind
    messages: list[Json]
    """The request's messages as sent, unnormalised."""
    tools: list[Json] | None
    params: Json
    """The rest of the request body as sent."""
    reply: Json
    """The assistant message as delivered."""
    prompt_ids: list[int]
    tokens: list[Token]
    sampling: SamplingParams
    policy_version: int
    finish_reason: FinishReason
    created_at: float
    timings: dict[str, float] = field(default_factory=dict)
    """``first_token_s`` and ``total_s``, from the request's arrival."""
    continues: str | None = None
    """The id of the turn whose reply this request's history ends with."""
    keys: dict[str, str] = field(default_factory=dict)
    """Look-up keys under which later requests find this turn."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request in the internal form; every dialect ends up here."""

    dialect: str
    user: str
    model: str
    messages: list[Message]
    tools: list[Tool]
    must_call: list[Tool]
    """The reply has to be a call of one of these; empty leaves it free."""
    json_schema: Json | None
    """The reply has to be JSON of this schema."""
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    num_choices: int
    stop: tuple[str, ...]
    top_logprobs: int
    thinking: bool | None
    headers: Mapping[str, str]
    body: Json
    """As sent."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request belongs."""

    session_id: str
    continues: str | None
    """The turn whose reply is the newest one in this request's history."""
    kind: TurnKind = "unknown"


class Capture(Protocol):
    """Where turns go. Neither method raises: a ledger that is down costs the record only."""

    async def place(self, request: ChatRequest) -> Placement: ...

    async def record(self, turn: TurnRecord, request: ChatRequest) -> bool:
        """True once the turn is durable."""

    async def delivered(self, turn_id: str, delivered: bool) -> None: ...


# --- judging ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JudgeCase:
    """Everything a judge may see of one turn, in the internal message form."""

    messages: list[Message]
    """The request, ephemeral context removed."""
    reply: Message
    next_state: list[Message] | None
    """All that followed the reply, whole and in order; None when the session ended with it."""
    finish_reason: FinishReason = "stop"
    regenerated: bool = False
    """The same request was asked again after this reply had been delivered."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became known about a turn. A turn nobody could judge has no verdict at all."""

    score: int
    """+1, 0 or −1."""
    confidence: float
    """0..1; weak signs count less in training."""
    source: str
    """``feedback``, ``rule:<name>`` or ``votes``."""
    votes: tuple[int | None, ...] = ()
    """None is a vote that could not be had."""
    hints: tuple[str, ...] = ()
    """How the reply should have differed, from the user or from facts of the environment."""
    trainable: bool = True
    reason: str = ""
    """In words for a person; for an untrainable turn, why."""


class JudgeError(Exception):
    """No verdict could be reached; the turn stays unjudged and is tried again."""


class Judge(Protocol):
    """Says how good a turn was. Raises JudgeError rather than inventing a neutral verdict."""

    async def evaluate(self, case: JudgeCase) -> Verdict: ...

    async def close(self) -> None: ...
