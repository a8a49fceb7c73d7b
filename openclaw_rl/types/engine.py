"""Requests to an engine and its results: tokens exactly as it sampled them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from openclaw_rl.types.base import BASE_VERSION, EVERYONE, FinishReason, Scope


class Priority(IntEnum):
    """Lower values run first: users, then the judge, then environments."""

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
    min_p: float = 0.0
    """Tokens less likely than this fraction of the most likely token's probability are excluded."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that already occurs in the reply."""
    frequency_penalty: float = 0.0
    """Subtracted once per occurrence of the token in the reply."""
    logit_bias: Mapping[str, float] = field(default_factory=dict)
    """Added to token logits; the keys are token ids as strings, as in JSON."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    prompt_ids: list[int]
    sampling: SamplingParams
    stop_ids: frozenset[int] = frozenset()
    """Sampling one of these ends the reply; the sampled ids include it."""
    policy_version: int | None = None
    """None: the version that serves the scope when the request starts."""
    scope: Scope = EVERYONE
    priority: Priority = Priority.LIVE
    top_logprobs: int = 8
    """How many raw alternatives to keep per token."""
    grammar: str | None = None
    """A grammar that the reply must follow, in the engine's grammar dialect."""
    owner: str | None = None
    """Whose request this is; None is the system itself. An owner must not be able to observe what was
    computed for others, not even through timing."""
    num_public: int = 0
    """The first tokens that are not private to the owner: the system prompt and tools."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token, exactly as the engine sampled it."""

    id: int
    logprob: float
    """Raw: temperature 1, no truncation, no grammar."""
    sampled_logprob: float
    """Under the distribution that was actually sampled from."""
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]
    """The raw top-k, best first."""
    policy_version: int
    forced: bool = False
    """The grammar allowed no other token; carries no training signal."""
    finish_reason: FinishReason | None = None
    """Set on the last token only."""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    token_ids: Sequence[int]
    start: int
    """Index of the first token to score; at least 1."""
    top_k: int = 0
    policy_version: int = BASE_VERSION
    priority: Priority = Priority.JUDGE
    hidden_layer: int | None = None
    """The layer whose last hidden state to return."""
    hidden_only: bool = False
    """Return no log-probs; an engine may then leave out the layers after ``hidden_layer``."""
    candidates: Sequence[Sequence[int]] | None = None
    """Further tokens to score, one row per scored position."""

    def __post_init__(self) -> None:
        if not 1 <= self.start < len(self.token_ids):
            raise ValueError(f"start must lie in 1..{len(self.token_ids) - 1}, got {self.start}")
        num_scored = len(self.token_ids) - self.start
        if self.candidates is not None and len(self.candidates) != num_scored:
            raise ValueError(f"{len(self.candidates)} rows of candidates for {num_scored} tokens")
        if self.hidden_only and self.hidden_layer is None:
            raise ValueError("hidden_only needs a hidden_layer")


@dataclass(frozen=True, slots=True)
class Scores:
    """Raw log-probs of given tokens: entry i belongs to ``token_ids[start + i]``."""

    logprobs: list[float]
    top_ids: list[list[int]]
    top_logprobs: list[list[float]]
    hidden: list[float] | None = None
    """The hidden state that predicts the last token, after the requested layer."""
    candidate_logprobs: list[list[float]] | None = None
    """Log-probs of the requested candidates at each position."""


@dataclass(frozen=True, slots=True)
class Weights:
    """One version of a policy's weights, wherever they are stored."""

    version: int
    uri: str
    """``file:///…/policies/3``, or any URI that both the engine and the trainer understand."""
    scope: Scope = EVERYONE

    @classmethod
    def in_folder(cls, version: int, folder: Path, scope: Scope = EVERYONE) -> Weights:
        return cls(version, folder.absolute().as_uri(), scope)

    @property
    def folder(self) -> Path:
        """Their folder on this machine; ValueError if they are elsewhere."""
        parts = urlsplit(self.uri)
        if parts.scheme != "file":
            raise ValueError(f"the weights of version {self.version} are at {self.uri}, not in a folder here")
        return Path(unquote(parts.path))


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do beyond generating and scoring with one set of weights."""

    adapters: bool = True
    """Loads LoRA adapters on top of the base."""
    full_weights: bool = False
    """Loads versions of all weights."""
    loads: tuple[str, ...] = ("file",)
    """URI schemes of the weights it can load; a trainer's ``makes`` must be among them."""
    reads_model: bool = True
    """Reads the model's weights from a local folder; otherwise the config and the tokenizer are enough."""
    scores_candidates: bool = True
    """Supports ``ScoreRequest.candidates`` and ``top_k``, which distillation needs from a teacher."""
    top_logprobs: bool = True
    """Returns the likeliest tokens with each sampled one; some algorithms need them."""
    sampled_logprobs: bool = True
    """Knows each token's log-prob under the distribution that it was sampled from, whatever the temperature,
    top-k and top-p. Without, replies could only be learned from as if sampled at temperature 1."""
    hidden_states: bool = False
    """Supports ``ScoreRequest.hidden_layer``."""
    grammar: str | None = None
    """The grammar dialect it supports, such as ``llguidance``; the engine then has ``check_grammar``."""
    warm_switching: bool = False
    """A conversation switches versions once its prompt is cached; the engine then has ``pick_version``."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    num_running: int
    num_waiting: int
    cached_tokens: int
    versions: tuple[int, ...]
    """All loaded versions, serving or not."""
    serving: Mapping[Scope, int] = field(default_factory=dict)
    """The version that serves each scope; the base serves scopes not listed."""

    def version_for(self, scope: Scope = EVERYONE) -> int:
        return self.serving.get(scope, BASE_VERSION)


@dataclass(frozen=True, slots=True)
class GpuOffer:
    """What an engine tells a trainer that uses the same GPU."""

    weights: Mapping[str, Any]
    """The base's tensors under their names in transformers, to be read only; empty if it shares none."""
    taken_later: int
    """Bytes that its cache may still take."""
    part: float
    """The part of the GPU's memory that both may use together."""


class Engine(Protocol):
    """Generates and scores. Loading a version never blocks a request in flight."""

    capabilities: Capabilities
    context_length: int

    def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        """Stream tokens; closing the iterator cancels the work."""

    async def score(self, request: ScoreRequest) -> Scores: ...

    async def load(self, weights: Weights) -> None:
        """Keeps other versions loaded. Reloading the same weights does nothing; other weights under the same
        version number replace it."""

    async def serve_version(self, version: int, scope: Scope = EVERYONE) -> None:
        """New requests of the scope use this version from now on; other scopes are unaffected."""

    async def unload(self, version: int) -> None:
        """ValueError for the base, and for a version that serves a scope."""

    def status(self) -> EngineStatus: ...

    async def close(self) -> None: ...


class FollowsGrammars(Protocol):
    """An engine whose capabilities name a grammar dialect."""

    def check_grammar(self, grammar: str) -> None:
        """Raises ValueError that says what is wrong with the grammar."""


class SwitchesWarm(Protocol):
    """An engine whose capabilities include ``warm_switching``."""

    def pick_version(
        self, prompt_ids: Sequence[int], scope: Scope = EVERYONE, owner: str | None = None
    ) -> int:
        """For a request that names no version: the one served, or the previous one while only that has the
        prompt cached."""


class Generate(Protocol):
    """Replaces ``engine.generate`` for client requests; the tokens must still be the engine's own."""

    def __call__(self, engine: Engine, request: GenerateRequest) -> AsyncIterator[Token]: ...


class RolloutDriver(Protocol):
    """Uses the served model through the API, as a client would, for as long as the learn process runs."""

    async def __call__(self, base_url: str, api_key: str) -> None: ...
