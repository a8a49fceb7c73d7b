"""A request and the turn it became."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from openclaw_rl.types.base import EVERYONE, FinishReason, Json, Message, Scope, Tool, TurnKind
from openclaw_rl.types.engine import SamplingParams, Token

#: In a turn's ``params``: no version of ours sampled the reply; its log-probs are the base's view of it.
OFF_POLICY = "off_policy"


@dataclass(slots=True)
class TurnRecord:
    """One reply with everything needed to judge and train it.

    A field with a text or a number as its default is a column of the ledger by itself; see ``schema.FACTS``.
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
    """Look-up keys under which later requests find this turn."""
    scope: Scope = EVERYONE
    """Whose policy answered, and whose it teaches."""
    fingerprint: str = ""
    """Of the model's weights; empty where they are not here, or not known."""
    secrets: str = ""
    """Kinds of secrets that were found in it and masked, such as ``aws-key``; nothing is learned from it."""


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
    temperature: float | None
    """None, like the next two: as the model's makers recommend."""
    top_p: float | None
    top_k: int | None
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
    scope: Scope = EVERYONE
    """Whose policy answers; the gateway says so, and the next."""
    system: str = ""
    """The system prompt as it was sent."""
    truncate: bool = False
    """Leave out the oldest messages if all do not fit."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request belongs."""

    session_id: str
    continues: str | None
    """The turn whose reply is the newest one in this request's history."""
    kind: TurnKind = "unknown"
    recorded: bool = True
    """False where nothing of it is kept."""


class Capture(Protocol):
    """Where turns go. No method raises: a ledger that is down costs the record only."""

    async def place(self, request: ChatRequest) -> Placement: ...

    async def record(self, turn: TurnRecord, request: ChatRequest) -> bool:
        """True once the turn is durable."""

    async def delivered(self, turn_id: str, delivered: bool) -> None: ...

    async def recall(self, turn_id: str) -> TurnRecord | None:
        """A turn that was recorded; None if there is none, or it cannot be read now."""

    async def withhold(self, turn_id: str) -> None:
        """Its user deleted it: never give it out again, nor learn from it."""
