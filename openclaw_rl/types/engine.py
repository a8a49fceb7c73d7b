"""What is asked of an engine, and what it gives: tokens exactly as it sampled them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from openclaw_rl.types.base import BASE_VERSION, EVERYONE, FinishReason, Scope


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
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest are cut off."""
    presence_penalty: float = 0.0
    """Taken from the logit of each token that the reply has already."""
    frequency_penalty: float = 0.0
    """The same, each time it has it."""
    logit_bias: Mapping[str, float] = field(default_factory=dict)
    """Added to the logits of tokens, by their ids as JSON has them."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    prompt_ids: list[int]
    sampling: SamplingParams
    stop_ids: frozenset[int] = frozenset()
    """Sampling one of these ends the reply; it is part of the sampled ids."""
    policy_version: int | None = None
    """None takes the version being served to the scope when the request starts."""
    scope: Scope = EVERYONE
    priority: Priority = Priority.LIVE
    top_logprobs: int = 8
    """How many raw alternatives to keep per token."""
    grammar: str | None = None
    """A grammar that the reply must follow, in the engine's dialect."""
    owner: str | None = None
    """Whose request this is; what was computed for somebody else must not show, not even in time. None is the
    system itself."""
    num_public: int = 0
    """So many tokens at the beginning are no secret of the owner's: a system prompt and tools."""


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
class ScoreRequest:
    token_ids: Sequence[int]
    start: int
    """The first token whose log-prob is wanted; at least 1."""
    top_k: int = 0
    policy_version: int = BASE_VERSION
    priority: Priority = Priority.JUDGE
    hidden_layer: int | None = None
    """Of which layer the last state is wanted."""
    candidates: Sequence[Sequence[int]] | None = None
    """Tokens whose log-probs are wanted as well, a row for each scored position."""

    def __post_init__(self) -> None:
        if not 1 <= self.start < len(self.token_ids):
            raise ValueError(f"start must lie in 1..{len(self.token_ids) - 1}, got {self.start}")
        num_scored = len(self.token_ids) - self.start
        if self.candidates is not None and len(self.candidates) != num_scored:
            raise ValueError(f"{len(self.candidates)} rows of candidates for {num_scored} tokens")


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
class Weights:
    """A version of a policy's weights, wherever they are."""

    version: int
    uri: str
    """``file:///…/policies/3``, or whatever the engine and the trainer call it."""
    scope: Scope = EVERYONE

    @classmethod
    def in_folder(cls, version: int, folder: Path, scope: Scope = EVERYONE) -> Weights:
        return cls(version, folder.absolute().as_uri(), scope)

    @property
    def folder(self) -> Path:
        """Where they lie on this machine; ValueError if they do not."""
        parts = urlsplit(self.uri)
        if parts.scheme != "file":
            raise ValueError(f"the weights of version {self.version} are at {self.uri}, not in a folder here")
        return Path(unquote(parts.path))


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do beyond generating and scoring one set of weights."""

    adapters: bool = True
    """Loads LoRA adapters beside the base."""
    full_weights: bool = False
    """Loads versions of all weights."""
    loads: tuple[str, ...] = ("file",)
    """URI schemes of the weights it can load: those that a trainer ``makes`` must be among them."""
    reads_model: bool = True
    """Reads the model's own weights from a folder here; else its config and its tokenizer are enough."""
    scores_candidates: bool = True
    """``ScoreRequest.candidates`` and ``top_k``: what distillation asks a teacher for."""
    top_logprobs: bool = True
    """Tells the likeliest tokens beside each sampled one; without, methods that compare with them cannot be
    used, and replies at other temperatures than 1 are learned from as if drawn at 1."""
    hidden_states: bool = False
    """``ScoreRequest.hidden_layer``."""
    grammar: str | None = None
    """The dialect of grammars it follows, such as ``llguidance``; it then has ``check_grammar``."""
    warm_switching: bool = False
    """Conversations switch versions when their prompts are read; it then has ``pick_version``."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    num_running: int
    num_waiting: int
    cached_tokens: int
    versions: tuple[int, ...]
    """Loaded, whether they serve or not."""
    serving: Mapping[Scope, int] = field(default_factory=dict)
    """Which version answers whom; a scope that is not named is answered by the base."""

    def version_for(self, scope: Scope = EVERYONE) -> int:
        return self.serving.get(scope, BASE_VERSION)


class Engine(Protocol):
    """Generates and scores. Loading a version never blocks a request in flight."""

    capabilities: Capabilities
    context_length: int

    def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        """Stream tokens; closing the iterator cancels the work."""

    async def score(self, request: ScoreRequest) -> Scores: ...

    async def load(self, weights: Weights) -> None:
        """Beside what is loaded. The same weights again are no work; others under a number replace it."""

    async def serve_version(self, version: int, scope: Scope = EVERYONE) -> None:
        """New requests of the scope take this version from now on; those of other scopes keep theirs."""

    async def unload(self, version: int) -> None:
        """ValueError for the base, and for a version that serves a scope."""

    def status(self) -> EngineStatus: ...

    async def close(self) -> None: ...


class FollowsGrammars(Protocol):
    """An engine whose capabilities name a grammar dialect."""

    def check_grammar(self, grammar: str) -> None:
        """Raises ValueError that says what is wrong with it."""


class SwitchesWarm(Protocol):
    """An engine whose capabilities say ``warm_switching``."""

    def pick_version(
        self, prompt_ids: Sequence[int], scope: Scope = EVERYONE, owner: str | None = None
    ) -> int:
        """For a new request that names none: the one served, or the one before while it alone is warm."""


class Generate(Protocol):
    """Takes the place of ``engine.generate`` for the requests of clients; the tokens must be the engine's."""

    def __call__(self, engine: Engine, request: GenerateRequest) -> AsyncIterator[Token]: ...


class Rollout(Protocol):
    """Uses the served model through the API, as a client would, for as long as the learn process runs."""

    async def __call__(self, base_url: str, api_key: str) -> None: ...
