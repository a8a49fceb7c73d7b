"""Requests, and the turns recorded from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from openclaw_rl.types.base import EVERYONE, FinishReason, Json, Message, Scope, Tool, TurnKind
from openclaw_rl.types.engine import SamplingParams, Token

#: Key in a turn's ``params``: none of our versions sampled the reply; its log-probs were scored by the base.
OFF_POLICY = "off_policy"
#: States of a background response, in the words of the Responses API.
RUNNING, CANCELLED, FAILED = "in_progress", "cancelled", "failed"


@dataclass(slots=True)
class TurnRecord:
    """One reply with everything needed to judge it and train on it.

    A field whose default is a string or a number becomes a ledger column automatically; see ``schema.FACTS``.
    """

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
    """Keys under which later requests look up this turn."""
    scope: Scope = EVERYONE
    """The policy that answered, and that learns from this turn."""
    fingerprint: str = ""
    """Fingerprint of the model's weights; empty if they are not on this machine, or unknown."""
    secrets: str = ""
    """Kinds of secrets found and masked, such as ``aws-key``; a turn with any is not trained on."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request in the internal form; every dialect is translated to it."""

    dialect: str
    user: str
    model: str
    messages: list[Message]
    tools: list[Tool]
    must_call: list[Tool]
    """The reply must call one of these; empty means no constraint."""
    json_schema: Json | None
    """The reply must be JSON that matches this schema."""
    max_tokens: int | None
    temperature: float | None
    """None (also in the next two fields): the model's recommended default."""
    top_p: float | None
    top_k: int | None
    seed: int | None
    num_choices: int
    stop: tuple[str, ...]
    top_logprobs: int
    thinking: bool | None
    headers: Mapping[str, str]
    body: Json
    """The request as chat completions, the form in which turns are stored: as sent in that dialect,
    translated from others, with their remaining fields added."""
    prompt: str | list[int] | None = None
    """Raw text or token ids to continue, instead of a conversation."""
    scope: Scope = EVERYONE
    """The policy that answers. The gateway sets this field and the next."""
    system: str = ""
    """The system prompt as sent."""
    truncate: bool = False
    """Drop the oldest messages if the conversation does not fit the context."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[str, float] = field(default_factory=dict)
    conversation: str | None = None
    """The id of the stored conversation that the request and its reply are added to."""
    items: Sequence[Json] = ()
    """What the request adds to it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The session and turn that a request belongs to."""

    session_id: str
    continues: str | None
    """The id of the turn whose reply is the latest one in this request's history."""
    kind: TurnKind = "unknown"
    recorded: bool = True
    """False if nothing of the request is stored."""


class Capture(Protocol):
    """Records turns. No method raises: if the ledger is down, only the record is lost."""

    async def place(self, request: ChatRequest) -> Placement: ...

    async def record(self, turn: TurnRecord, request: ChatRequest) -> bool:
        """Return True once the turn is durable."""

    async def delivered(self, turn_id: str, delivered: bool) -> None: ...

    async def recall(self, turn_id: str) -> TurnRecord | None:
        """A recorded turn; None if it does not exist or cannot be read now."""

    async def withhold(self, turn_id: str) -> None:
        """The user deleted the turn: never return it again or train on it."""


class ConversationStore(Protocol):
    """Conversations of the Responses API. The methods block; they raise if the database cannot be used."""

    is_private: Callable[[str], bool]
    """Nothing of this user is kept."""

    def create(self, conversation_id: str, user: str, metadata: Json, items: Sequence[Json]) -> None: ...

    def find(self, conversation_id: str, user: str) -> Json | None:
        """As the API shows it; None if there is none of this user."""

    def update(self, conversation_id: str, metadata: Json) -> None: ...

    def delete(self, conversation_id: str) -> None: ...

    def items(self, conversation_id: str) -> list[Json]:
        """Oldest first."""

    def add_items(self, conversation_id: str, items: Sequence[Json], turn_id: str | None = None) -> bool:
        """All of them or none; False if the conversation is no longer there."""

    def delete_item(self, conversation_id: str, item_id: str) -> bool:
        """False if there is none."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A background response without a complete turn."""

    model: str
    created_at: float
    status: str
    error: str | None
    is_alive: bool
    """Another process is working on it."""


class BackgroundStore(Protocol):
    """Background responses that are not complete. The methods block, and may raise."""

    def begin(self, response_id: str, user: str, model: str, created_at: float) -> None: ...

    def touch(self, response_id: str) -> bool:
        """It still runs; False if it was stopped meanwhile."""

    def find(self, response_id: str, user: str) -> Unfinished | None: ...

    def stop(self, response_id: str, status: str, error: str | None) -> None:
        """Only if it runs: the first reason stays."""

    def remove(self, response_id: str) -> None: ...
