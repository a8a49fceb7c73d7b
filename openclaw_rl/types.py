"""What the stages exchange, and the protocols they plug into.

Plain dataclasses and Protocols: no pydantic, no torch, no web library, so that every stage and
every machine can import it. A log-prob here is always one that an engine produced for exactly
the token it stands beside; nothing in this file pads, guesses or re-tokenises.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np

    IntArray = np.ndarray[tuple[int, int], np.dtype[np.int32]]
    FloatArray = np.ndarray[tuple[int, int], np.dtype[np.float32]]
else:
    # numpy is not needed to import this file.
    IntArray = FloatArray = Any

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
    candidate_logprobs: list[list[float]] | None = None
    """Of the tokens that were asked for at each position."""


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
        candidates: Sequence[Sequence[int]] | None = None,
    ) -> Scores:
        """``candidates`` asks for the log-probs of certain tokens at each scored position."""

    async def load(self, version: int, path: Path) -> None: ...

    async def serve_version(self, version: int) -> None:
        """New requests take this version from now on."""

    async def unload(self, version: int) -> None: ...

    def pick_version(self, prompt_ids: Sequence[int]) -> int:
        """For a new request that names none: the one served, or the one before while it alone is warm."""

    def check_grammar(self, grammar: str) -> None:
        """Raises ValueError that says what is wrong with it."""

    def status(self) -> EngineStatus: ...

    async def close(self) -> None: ...


class Generate(Protocol):
    """Takes the place of ``engine.generate`` for the requests of clients; the tokens must be the engine's."""

    def __call__(self, engine: Engine, request: GenerateRequest) -> AsyncIterator[Token]: ...


class Rollout(Protocol):
    """Uses the served model through the API, as a client would, for as long as the learn process runs."""

    async def __call__(self, base_url: str, api_key: str) -> None: ...


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

    def encode(self, text: str) -> list[int]:
        """Bare text, none of which becomes a control token."""


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
    """The request's messages in chat-completions form: as sent, or translated from another dialect."""
    tools: list[Json] | None
    params: Json
    """The rest of the request body."""
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
    """In the shape of a chat-completions request, which is how turns are stored whatever came in: as sent
    in that dialect, translated from the others, with their remaining fields beside it."""
    prompt: str | list[int] | None = None
    """Text or ids to go on from as they are, instead of a conversation."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request belongs."""

    session_id: str
    continues: str | None
    """The turn whose reply is the newest one in this request's history."""
    kind: TurnKind = "unknown"


class Capture(Protocol):
    """Where turns go. No method raises: a ledger that is down costs the record only."""

    async def place(self, request: ChatRequest) -> Placement: ...

    async def record(self, turn: TurnRecord, request: ChatRequest) -> bool:
        """True once the turn is durable."""

    async def delivered(self, turn_id: str, delivered: bool) -> None: ...

    async def recall(self, turn_id: str) -> TurnRecord | None:
        """A turn that was recorded; None if there is none, or it cannot be read now."""


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
    """``feedback``, ``exclude`` (a person's word, too), ``rule:<name>`` or ``votes``."""
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


# --- learning --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lesson:
    """A judged turn, as an algorithm sees it."""

    turn: TurnRecord
    verdict: Verdict
    hinted: Callable[[str], list[int] | None]
    """The prompt's ids with a hint added to the user's last message; None where it cannot be rebuilt."""


class Scorer(Protocol):
    """Raw log-probs of chosen tokens under the teacher."""

    async def score(self, prompt_ids: list[int], reply_ids: list[int], ids_NK: IntArray) -> Teaching: ...


@dataclass(frozen=True, slots=True)
class Teaching:
    """What the teacher thinks at each position of a reply."""

    logprobs_NK: FloatArray
    """Of the tokens that were asked for."""
    top_ids_NK: IntArray
    """Its own likeliest tokens, as many as were asked for."""
    top_logprobs_NK: FloatArray
    """Of those."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A turn with a signal for every token: all that training needs besides the turn itself.

    Row i is the reply's i-th token, column k one candidate there with its own signal. The first column is
    the token that was sampled. What the signal means is the loss's business.
    """

    ids_NK: IntArray
    old_NK: FloatArray
    """Raw log-probs under the version that sampled the reply; above 0 where they were not recorded."""
    signal_NK: FloatArray
    """Zero where a candidate has nothing to say, such as tokens forced by a grammar."""
    strength: float = 1.0
    """0..1: how much of a reason this sample is to take a step at all."""
    hint: str | None = None
    """The one that was distilled."""


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A sample on its way into a step."""

    turn: TurnRecord
    sample: Sample
    score: int
    """The verdict's."""


class Loss(Protocol):
    """Loss per position from log-probs now, before, and the signal; torch tensors, all ``[N, K]``.

    Samples with fewer candidates than others get columns with a signal of 0, or of the loss's ``padding``
    where it has one; such a column must count for nothing.
    """

    def __call__(self, new_NK: Any, old_NK: Any, signal_NK: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Batch:
    items: Sequence[BatchItem]
    loss: Loss
    scale: float = 1.0
    """Of the learning rate: a batch with little to say takes a small step."""


class Algorithm(Protocol):
    """Turns judged turns into per-token signal. Short on purpose: one file each."""

    async def sample(self, lesson: Lesson, scorer: Scorer) -> Sample | None:
        """None: this turn has nothing to teach."""

    def batch(self, items: Sequence[BatchItem], state: Json) -> Batch:
        """Baselines, groups and the step's size. ``state`` is kept with the weights; it may be changed."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step did, for people and for the gate."""

    loss: float
    grad_norm: float
    finite: bool
    learning_rate: float
    num_samples: int
    num_tokens: int
    num_reply_tokens: int
    mismatch: float | None
    """Mean |log-prob here − log-prob when served| of tokens sampled by the version the step began with."""
    ratio: float
    """Mean ratio of probabilities, now to then, of the sampled tokens, before the step."""
    forward_s: float
    backward_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Policy:
    """One version of the weights, and what is known about it."""

    version: int
    parent: int | None
    status: str
    """``training`` → ``candidate`` → ``serving`` → ``retired``, or ``rejected``."""
    created_at: float
    published_at: float | None
    num_samples: int
    config_hash: str
    metrics: Json
    gate: Json


class Trainer(Protocol):
    """Changes weights; knows no algorithm by name. Synchronous: call it in one thread of its own."""

    def resume(self, folder: Path | None) -> None:
        """Go on from a saved version, or from the base."""

    def step(self, batch: Batch, version: int) -> StepReport:
        """One optimizer step; ``version`` is the one it starts from."""

    def save(self, folder: Path, state: Json) -> None:
        """Weights that an engine can load, and everything ``resume`` needs, ``state`` included."""

    @property
    def state(self) -> Json:
        """The algorithm's own, as last saved."""


class Sink(Protocol):
    """Where numbers go, for people who have a place for them."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """The numbers of one step; ``step`` is the version it made."""

    def close(self) -> None: ...
