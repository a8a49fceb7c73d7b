"""Distillation of hinted answers: the model learns to answer without the hint as it does with it.

A complaint states a wish. The hinted base answers that request and many others, several times each, and the
best answers to every request are kept. The student, without the hint, is trained towards the hinted base's
distribution at each of their tokens. Whole answers have a form that reweighting the student's own tokens
cannot reach, and many different requests keep the wish from staying tied to one wording. Anchors hold what no
wish concerns.

Choosing the best answers needs no labels. An answer must be about its request: it names the subject, or is
clearly likelier after it than after other requests. Of those, the best shows the wish most: the hint raises
its log-prob most. Answers that merely repeat the wish are left out. If too few requests get a usable answer,
the hinted base cannot follow the wish, and nothing is learned.

A wish about only the form of replies (``forms``) does not depend on that: the model answers without a hint,
and its answers are cut, laid out or added to. A form that only cuts is first looked for in answers with the
hint: an answer that is meant to be short gets to the point, the first sentence of a long one need not.

Some requests are questions with a known answer. Only right answers to them are learned from.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

import numpy as np

from openclaw_rl.forms import Reading, read
from openclaw_rl.relevance import CLEARLY, OTHERS, names, own_words
from openclaw_rl.types import (
    NO_SIGNAL,
    Answer,
    Ask,
    Batch,
    Example,
    FloatArray,
    Json,
    Lesson,
    Needs,
    Scorer,
    Source,
    Teacher,
    distribution_example,
)

_WORD = re.compile(r"[^\W_]+")
#: An answer that shares this many consecutive words with the wish repeats it.
_ECHO = 5
#: Tokens of an answer that are scored for whether it shows the wish and answers its request.
_TELLING = 40
#: If one answer in this many is finished, only finished ones are used: they teach when to stop. Where fewer
#: are, the wish makes answers long.
_FINISHED = 4
#: Characters compared at the end of a text to tell whether it was cut off.
_TAIL = 24
_IMPOSSIBLE = -30.0
#: Share of the requests that must get a usable answer.
_LEAST_SHARE = 0.25


@dataclass(frozen=True)
class Hinted:
    requests: int = 16
    """Requests per complaint on which the wish is taught."""
    answers: int = 12
    """Answers sampled for each request: of more of them, the best is better."""
    form_answers: int = 4
    """The same if the wish is about form, so that the best need only have it."""
    shaped_answers: int = 2
    """The same if answers are put into form, so that any answer about its request will do."""
    keep: int = 3
    """Answers to each request that are learned from: more different ones keep more of the subject."""
    form_keep: int = 1
    """The same if the wish is about form: any one answer shows it."""
    own_share: float = 0.5
    """Share of the target on the kept answer's own token; the rest is the hinted base's distribution."""
    hold: int = 4
    """Before a cut, one token in this many is trained to stay as it was."""
    steps: int = 8
    """Optimizer steps per version."""
    step_examples: int = 8
    """Examples of each step, if the wish is about form."""
    step_told: int = 16
    """The same if it is not: slower, but keeps the subject."""
    anchors: int = 4
    """Anchors added to each step's examples."""
    scale: float = 0.6
    """Factor of the learning rate."""
    pool: int = 64
    """Examples of earlier complaints that are replayed while the wishes stay the same."""

    @property
    def needs(self) -> Needs:
        return Needs(
            loss="forward-kl",
            batch_size=1,
            generates=True,
            shapes=True,
            steps=self.steps,
            step_examples=self.step_examples,
            step_told=self.step_told,
            anchors=self.anchors,
            pool=self.pool,
        )

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        """Praise teaches nothing: the model already does what was praised. A complaint without words teaches
        the wishes that hold."""
        if lesson.verdict.score >= 0 or not (lesson.verdict.hints or lesson.wishes):
            return []
        teacher: Teacher = scorer  # type: ignore[assignment]  # guaranteed by needs.generates
        reading = read(lesson.wishes)
        keep = self.form_keep if reading.can_make else self.keep
        choice = _Choice(teacher, " ".join(lesson.wishes), reading, keep)
        asks = lesson.asks(choice.wish, self.requests)
        seed = int.from_bytes(hashlib.sha256(lesson.turn.id.encode()).digest()[:4], "big")
        own = own_words([ask.text for ask in asks])
        kept = await asyncio.gather(
            *(self._answers(choice, asks, n, own[n], seed + 97 * n) for n in range(len(asks)))
        )
        open_ended = [bool(best) for ask, best in zip(asks, kept, strict=True) if not ask.right]
        if sum(open_ended) < _LEAST_SHARE * len(open_ended):
            return []
        return [
            choice.example(ask, each, _source(lesson, ask, choice.wish), self)
            for ask, best in zip(asks, kept, strict=True)
            for each in best
        ]

    async def _answers(
        self, choice: _Choice, asks: Sequence[Ask], which: int, own: frozenset[str], seed: int
    ) -> list[_Kept]:
        """The answers to one request to learn from: with the hint, or else put into form."""
        if choice.is_told:
            number = self.form_answers if choice.reading.can_make else self.answers
            told = await choice.teacher.answer(asks[which].hinted_ids, number, seed)
            if (
                best := await choice.best(asks, which, own, told, shaped=False)
            ) or not choice.reading.can_make:
                return best
        plain = await choice.teacher.answer(asks[which].prompt_ids, self.shaped_answers, seed)
        return await choice.best(asks, which, own, plain, shaped=True)

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        return Batch(examples, self.needs.loss, scale=self.scale)


@dataclass(frozen=True)
class _Kept:
    answer: Answer
    is_new: FloatArray
    """1 for a token that the form added, 0 for one from the original answer."""
    shaped: bool
    """Whether it was given without the hint and put into form."""

    def own_share(self, usual: float) -> FloatArray:
        """1 for tokens that the form added, ``usual`` for others."""
        return np.maximum(self.is_new, np.float32(usual))


@dataclass(frozen=True)
class _Choice:
    """Chooses the answers from which to learn a user's wishes."""

    teacher: Teacher
    wish: str
    reading: Reading
    keep: int

    @property
    def is_told(self) -> bool:
        """Whether answers with the hint are asked for first."""
        return self.reading.cuts or not self.reading.can_make

    def example(self, ask: Ask, kept: _Kept, source: Source, options: Hinted) -> Example:
        """Of answers that no form could make, a step uses more: seeing many keeps more of the subject.

        Tokens that a form leaves unchanged are trained to stay the same, unless the form selects answers.

        Before a cut only some of them: all there is to learn is where to stop. Otherwise all of them, because
        they show where the form does *not* occur.
        """
        if not kept.shaped or self.reading.selects:
            share = kept.own_share(options.own_share)
            told = distribution_example(ask, kept.answer, source, share)
            return replace(told, is_told=not self.reading.can_make)
        share = kept.own_share(0.0)
        made = distribution_example(ask, kept.answer, source, share)
        if not self.reading.cuts:
            return made
        left_out = (share == 0) & (np.arange(len(share))[:, None] % options.hold > 0)
        signal = np.where(left_out, np.float32(NO_SIGNAL), made.signal_NK)
        return replace(made, signal_NK=signal, num_free=int(len(share) - left_out.sum()))

    async def best(
        self, asks: Sequence[Ask], which: int, own: frozenset[str], answers: Sequence[Answer], shaped: bool
    ) -> list[_Kept]:
        """The answers to one request that are right or about it, have the form, and show the wish most.

        ``shaped`` answers were given without the hint, so the first few that can be put into form will do.
        """
        found = []
        for answer in self._usable(answers):
            text = self._formed(answer, shaped)
            if text is None or self.teacher.degenerate(text):
                continue
            if not await self._fits(asks, which, own, text, answer, shaped):
                continue
            shows = 0.0 if shaped else await self._shows(asks[which], answer)
            if shows > 0 or self.reading.can_make or not self.wish:
                found.append((shows, self._keep(text, answer, shaped)))
            if shaped and len(found) == self.keep:
                break
        found.sort(key=lambda each: -each[0])
        return [kept for _, kept in found[: self.keep]]

    def _usable(self, answers: Sequence[Answer]) -> list[Answer]:
        usable = [a for a in answers if a.ids and not self.teacher.degenerate(a.text)]
        usable = [a for a in usable if not echoes(a.text, self.wish)]
        finished = [a for a in usable if a.finished]
        return finished if _FINISHED * len(finished) >= len(usable) else usable

    def _formed(self, answer: Answer, shaped: bool) -> str | None:
        """The text to learn; None if it lacks the form. A cut would be learned better from a plain answer."""
        if shaped or not self.reading.can_make:
            return self.reading.made(answer.text)
        return answer.text if answer.finished and self.reading.meets(answer.text) else None

    def _keep(self, text: str, given: Answer, shaped: bool) -> _Kept:
        """An answer put into form. Unchanged tokens keep the distribution recorded when they were sampled.

        They are not scored again in the new text: after a form that it never uses, the model would repeat it.
        """
        cut_off = not given.finished and text.endswith(given.text[-_TAIL:])
        ids = given.ids if text == given.text else self.teacher.encode(text, ends=not cut_off)
        is_new = np.ones((len(ids), 1), np.float32)
        logprobs = np.zeros(len(ids), np.float32)
        top_ids = np.repeat(given.top_ids_NK[:1], len(ids), axis=0)
        top_logprobs = np.full_like(np.repeat(given.top_logprobs_NK[:1], len(ids), axis=0), _IMPOSSIBLE)
        for old, new, size in SequenceMatcher(None, given.ids, ids, autojunk=False).get_matching_blocks():
            there, here = slice(old, old + size), slice(new, new + size)
            logprobs[here] = given.logprobs[there]
            top_ids[here], top_logprobs[here] = given.top_ids_NK[there], given.top_logprobs_NK[there]
            # The token right after an added one counts as added.
            is_new[new + (old != new) : new + size] = 0.0
        if shaped and not cut_off:
            is_new[-1:] = 1.0  # the end of the reply
        answer = Answer(ids, logprobs.tolist(), top_ids, top_logprobs, text, finished=not cut_off)
        return _Kept(answer, is_new, shaped)

    async def _fits(
        self,
        asks: Sequence[Ask],
        which: int,
        own: frozenset[str],
        text: str,
        answer: Answer,
        shaped: bool,
    ) -> bool:
        """Whether it is right, names the subject, or is clearly likelier here than after other requests."""
        if right := asks[which].right:
            return any(re.search(rf"(?<!\w){re.escape(each)}", text, re.IGNORECASE) for each in right)
        if names(text, own):
            return True
        if self.reading.can_make and own:  # enough other answers do
            return False
        others = [asks[(which + n) % len(asks)] for n in range(1, min(OTHERS + 1, len(asks)))]
        ids, told = answer.ids[:_TELLING], float(np.mean(answer.logprobs[:_TELLING]))
        prompts = [other.prompt_ids if shaped else other.hinted_ids for other in others]
        elsewhere = [await self.teacher.mean_logprob(prompt, ids) for prompt in prompts]
        return all(told - each >= CLEARLY for each in elsewhere)

    async def _shows(self, ask: Ask, answer: Answer) -> float:
        """By how much the hint raises its mean log-prob."""
        told = float(np.mean(answer.logprobs[:_TELLING]))
        return told - await self.teacher.mean_logprob(ask.prompt_ids, answer.ids[:_TELLING])


def _source(lesson: Lesson, ask: Ask, wish: str) -> Source:
    """Stored under the complaint's turn, and linked to the turn whose request it answers."""
    mine = lesson.turn.id
    others = (ask.turn_id,) if ask.turn_id not in ("", mine) else ()
    return Source("hinted", (mine, *others), lesson.turn.user, lesson.verdict.score, wish)


def echoes(text: str, wish: str) -> bool:
    """Whether an answer repeats the wish instead of following it."""
    said, wished = (tuple(word.lower() for word in _WORD.findall(t)) for t in (text, wish))
    runs = {wished[n : n + _ECHO] for n in range(len(wished) - _ECHO + 1)}
    return any(said[n : n + _ECHO] in runs for n in range(len(said) - _ECHO + 1))
