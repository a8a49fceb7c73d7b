"""Judged turns into samples: the teacher is asked, held-out turns are set aside, the rest wait for a step."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from openclaw_rl.types import (
    BASE_VERSION,
    Algorithm,
    Engine,
    Example,
    IntArray,
    Lesson,
    Message,
    Renderer,
    Scope,
    ScoreRequest,
    Teaching,
    Tool,
    TurnRecord,
    Verdict,
    Weights,
)

log = logging.getLogger(__name__)
_PAGE = 50
#: Tokens of the teacher's own that are asked for; ``--teacher-k`` is at most this.
_TEACHER_TOP = 8
NEUTRAL = "neutral: neither praise nor correction followed"
NO_LESSON = (
    "the algorithm finds nothing to learn here, such as a complaint without a word on what to do instead"
)
NOT_FINITE = "its log-probs are not finite numbers"
NO_TOKENS = "another server answered, so its tokens are not known"


class VerdictQueue(Protocol):
    """Where judged turns come from and samples go. Synchronous; called in threads."""

    def pending(self, limit: int) -> list[tuple[int, str]]: ...

    def judged(self, turn_id: str) -> tuple[TurnRecord, Verdict] | None: ...

    def corrected(self, turn: TurnRecord) -> tuple[TurnRecord, Verdict] | None: ...

    def skip(self, seq: int) -> None: ...

    def settle(
        self,
        seq: int,
        turn: TurnRecord,
        verdict: Verdict,
        examples: Sequence[Example] = (),
        reason: str | None = None,
        held_out: bool = False,
    ) -> None: ...


class EngineScorer:
    """The teacher: some version on the engine that serves, at low priority.

    ``teacher`` names a scope's as of now; None is the base.
    """

    def __init__(self, engine: Engine, teacher: Callable[[Scope], Weights | None]) -> None:
        self._engine, self._teacher = engine, teacher
        self._version = BASE_VERSION

    async def prepare(self, scope: Scope) -> None:
        """Have a scope's teacher loaded; nothing to do if it is."""
        weights = self._teacher(scope)
        self._version = BASE_VERSION if weights is None else weights.version
        if weights is not None:
            await self._engine.load(weights)

    async def score(self, prompt_ids: list[int], reply_ids: list[int], ids_NK: IntArray) -> Teaching:
        scores = await self._engine.score(
            ScoreRequest(
                [*prompt_ids, *reply_ids],
                len(prompt_ids),
                top_k=max(ids_NK.shape[1], _TEACHER_TOP),
                policy_version=self._version,
                candidates=ids_NK.tolist(),
            )
        )
        return Teaching(
            np.array(scores.candidate_logprobs, np.float32),
            np.array(scores.top_ids, np.int32),
            np.array(scores.top_logprobs, np.float32),
        )


class StoredRequest(Protocol):
    """As much of a stored turn's request as decides its prompt."""

    @property
    def messages(self) -> list[Message]: ...

    @property
    def tools(self) -> list[Tool]: ...

    @property
    def thinking(self) -> bool | None: ...


class Prompts:
    """Prompts rebuilt from stored requests, with something added to what the user said last."""

    def __init__(
        self,
        renderer: Renderer,
        stored_request: Callable[[TurnRecord], StoredRequest],
        is_ephemeral: Callable[[Message], bool],
    ) -> None:
        self._renderer, self._stored_request, self._is_ephemeral = renderer, stored_request, is_ephemeral

    def hinted(self, turn: TurnRecord, hint: str) -> list[int] | None:
        """None where the prompt as it was cannot be rebuilt: a hint would then not be the only difference."""
        try:
            request = self._stored_request(turn)
            render = self._renderer.render
            if render(request.messages, request.tools, thinking=request.thinking) != turn.prompt_ids:
                return None
            messages = self._with_hint(request.messages, hint)
            if messages is None:
                return None
            return render(messages, request.tools, thinking=request.thinking)
        except ValueError as error:
            log.warning("rebuilding a turn's prompt failed: %s", type(error).__name__)
            return None

    def _with_hint(self, messages: list[Message], hint: str) -> list[Message] | None:
        for index in reversed(range(len(messages))):
            message = messages[index]
            if message["role"] == "user" and not self._is_ephemeral(message):
                content = f"{(message.get('content') or '').rstrip()}\n\n{hint}"
                return [*messages[:index], {**message, "content": content}, *messages[index + 1 :]]
        return None


class Sampler:
    """Makes the samples, one verdict after the other, in the order they came."""

    def __init__(
        self,
        verdicts: VerdictQueue,
        algorithm: Algorithm,
        scorer: EngineScorer,
        prompts: Prompts,
        held_out_share: float,
    ) -> None:
        self._verdicts, self._algorithm, self._scorer, self._prompts = verdicts, algorithm, scorer, prompts
        self._held_out_share = held_out_share
        self._prepared: Scope | None = None
        """Whose teacher is loaded."""

    async def run(self) -> int:
        """Everything that is pending; returns how much that was."""
        done = 0
        while pending := self._verdicts.pending(_PAGE):
            self._prepared = None
            for seq, turn_id in pending:
                await self._settle(seq, turn_id)
            done += len(pending)
        return done

    async def _settle(self, seq: int, turn_id: str) -> None:
        found = self._verdicts.judged(turn_id)
        if found is None:
            self._verdicts.skip(seq)
            return
        turn, verdict = found
        if not verdict.trainable:
            self._verdicts.settle(seq, turn, verdict)
            return
        if verdict.source == "exclude":
            self._verdicts.settle(seq, turn, verdict, reason=verdict.reason)
            return
        if not turn.tokens:
            self._verdicts.settle(seq, turn, verdict, reason=NO_TOKENS)
            return
        try:
            examples = await self._examples(turn, verdict)
        except ValueError as error:
            # Of this turn: too long with its hint, fewer alternatives kept than the algorithm needs …
            self._verdicts.settle(seq, turn, verdict, reason=str(error))
            return
        if not examples:
            self._verdicts.settle(seq, turn, verdict, reason=NO_LESSON if verdict.score else NEUTRAL)
        elif not all(np.isfinite(a).all() for made in examples for a in (made.old_NK, made.signal_NK)):
            self._verdicts.settle(seq, turn, verdict, reason=NOT_FINITE)
        else:
            held_out = _fraction(turn.id) < self._held_out_share
            self._verdicts.settle(seq, turn, verdict, examples, held_out=held_out)

    async def _examples(self, turn: TurnRecord, verdict: Verdict) -> list[Example]:
        if self._prepared != turn.scope:
            await self._scorer.prepare(turn.scope)
            self._prepared = turn.scope
        before = self._verdicts.corrected(turn) if verdict.score > 0 else None
        lesson = self._lesson(turn, verdict, self._lesson(*before) if before else None)
        made = await self._algorithm.examples(lesson, self._scorer)
        # Here, so that no algorithm can teach somebody else's policy.
        return [replace(example, scope=turn.scope) for example in made]

    def _lesson(self, turn: TurnRecord, verdict: Verdict, corrected: Lesson | None = None) -> Lesson:
        return Lesson(turn, verdict, lambda hint: self._prompts.hinted(turn, hint), corrected)


async def settle_untrained(verdicts: VerdictQueue, reason: str, poll_s: float = 0.5) -> None:
    """Where nothing is trained, every judged turn says why; until cancelled."""
    while True:
        pending = await asyncio.to_thread(verdicts.pending, _PAGE)
        for seq, turn_id in pending:
            found = await asyncio.to_thread(verdicts.judged, turn_id)
            if found is None:
                await asyncio.to_thread(verdicts.skip, seq)
            else:
                given = None if not found[1].trainable else reason
                await asyncio.to_thread(partial(verdicts.settle, seq, *found, reason=given))
        if not pending:
            await asyncio.sleep(poll_s)


def _fraction(turn_id: str) -> float:
    """A number in 0..1 that is the same whenever and wherever it is asked for."""
    return int.from_bytes(hashlib.sha256(turn_id.encode()).digest()[:4], "big") / 2**32
