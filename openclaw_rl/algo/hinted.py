"""Distillation of hinted answers: how the model answers when it is told, learned until it need not be told.

A complaint says what its reader wishes for. The plain base model, told so, answers that request and many
others, several times each; of every request's answers the best are kept; the student, who is not told, is
moved towards what the told model held likely at each of their tokens. Whole answers carry a form that
pushing the student's own tokens about cannot reach, and many different requests keep the wish from
staying with the words it was complained about. What no wish concerns is held by anchors.

Which answers are the best nobody has to label. An answer must be about its request: it names what was
asked about, or is clearly likelier there than after other requests. Of those, the best shows the wish most:
knowing the wish makes it likelier than it was. Those that merely repeat the wish's words are left out. Where
the told model answers too few of the requests, it does not manage the wish, and nothing is learned.

A wish about nothing but the form of replies (``forms``) does not depend on that: the model answers as ever,
and its answers are cut, laid out or added to.
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
#: Words in a row that an answer may share with the wish.
_ECHO = 5
#: Of an answer, so many tokens tell whether it shows the wish and answers its request.
_TELLING = 40
#: Where one in so many answers comes to an end, only such are learned from: they teach to stop.
_FINISHED = 4
#: Of a text's end, so much tells whether it was cut.
_TAIL = 24
_IMPOSSIBLE = -30.0
#: Of the requests, those that must find an answer.
_LEAST_SHARE = 0.25


@dataclass(frozen=True)
class Hinted:
    requests: int = 16
    """On so many a wish is taught per complaint."""
    answers: int = 4
    """So many are given to each."""
    shaped_answers: int = 2
    """So many where any that is about its request will do: those are put into form."""
    keep: int = 1
    """So many of them are learned from."""
    own_share: float = 0.5
    """Of what is aimed at, the kept answer's own token; the rest is all that the told model held likely."""
    hold: int = 4
    """Of what comes before a cut, one token in so many is held as it was."""
    steps: int = 8
    """Optimizer steps a version."""
    step_examples: int = 8
    anchors: int = 4
    """Of what shall stay as it is, beside each step's examples."""
    scale: float = 0.6
    """Of the learning rate."""
    pool: int = 64
    """Examples of earlier complaints that are heard again while the wishes are the same."""

    @property
    def needs(self) -> Needs:
        return Needs(
            loss="forward-kl",
            batch_size=1,
            generates=True,
            shapes=True,
            steps=self.steps,
            step_examples=self.step_examples,
            anchors=self.anchors,
            pool=self.pool,
        )

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        """Praise teaches nothing: what was praised is there already."""
        if lesson.verdict.score >= 0 or not lesson.verdict.hints:
            return []
        teacher: Teacher = scorer  # type: ignore[assignment]  # needs.generates says so
        choice = _Choice(teacher, " ".join(lesson.wishes), read(lesson.wishes), self.keep)
        asks = lesson.asks(choice.wish, self.requests)
        seed = int.from_bytes(hashlib.sha256(lesson.turn.id.encode()).digest()[:4], "big")
        number = self.shaped_answers if choice.reading.can_make else self.answers
        given = await asyncio.gather(
            *(teacher.answer(choice.prompt(ask), number, seed + 97 * n) for n, ask in enumerate(asks))
        )
        own = own_words([ask.text for ask in asks])
        kept = await asyncio.gather(
            *(choice.best(asks, n, own[n], answers) for n, answers in enumerate(given))
        )
        if sum(map(bool, kept)) < _LEAST_SHARE * len(asks):
            return []
        return [
            choice.example(ask, each, _source(lesson, ask, choice.wish), self)
            for ask, best in zip(asks, kept, strict=True)
            for each in best
        ]

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        return Batch(examples, self.needs.loss, scale=self.scale)


@dataclass(frozen=True)
class _Kept:
    answer: Answer
    is_new: FloatArray
    """Where 1, the form brought a token in; where 0, it is as it was given."""

    def own_share(self, usual: float) -> FloatArray:
        """Of what the form brought in, all."""
        return np.maximum(self.is_new, np.float32(usual))


@dataclass(frozen=True)
class _Choice:
    """What to learn a person's wishes from."""

    teacher: Teacher
    wish: str
    reading: Reading
    keep: int

    def prompt(self, ask: Ask) -> list[int]:
        """Who can be put into form needs not be told, and answers better."""
        return ask.prompt_ids if self.reading.can_make else ask.hinted_ids

    def example(self, ask: Ask, kept: _Kept, source: Source, options: Hinted) -> Example:
        """What a form does not touch is held as it is, unless it is what was chosen for.

        Before a cut, here and there: where to stop is all there is to learn. Elsewhere all of it, because it
        says where the form does *not* come again.
        """
        if not self.reading.can_make or self.reading.selects:
            return distribution_example(ask, kept.answer, source, kept.own_share(options.own_share))
        share = kept.own_share(0.0)
        made = distribution_example(ask, kept.answer, source, share)
        if not self.reading.cuts:
            return made
        left_out = (share == 0) & (np.arange(len(share))[:, None] % options.hold > 0)
        signal = np.where(left_out, np.float32(NO_SIGNAL), made.signal_NK)
        return replace(made, signal_NK=signal, num_free=int(len(share) - left_out.sum()))

    async def best(
        self, asks: Sequence[Ask], which: int, own: frozenset[str], answers: Sequence[Answer]
    ) -> list[_Kept]:
        """Those of one request's answers that are about it, have the form, and show the wish most."""
        usable = [a for a in answers if a.ids and not self.teacher.degenerate(a.text)]
        usable = [a for a in usable if not echoes(a.text, self.wish)]
        finished = [a for a in usable if a.finished]
        if _FINISHED * len(finished) >= len(usable):  # unless the wish makes them long
            usable = finished
        found = []
        for answer in usable:
            text = self.reading.made(answer.text)
            if text is None or self.teacher.degenerate(text):
                continue
            if not await self._is_about(asks, which, own, text, answer):
                continue
            shows = 0.0 if self.reading.can_make else await self._shows(asks[which], answer)
            if shows > 0 or self.reading.can_make or not self.wish:
                found.append((shows, self._shaped(text, answer)))
            if self.reading.can_make and len(found) == self.keep:
                break
        found.sort(key=lambda each: -each[0])
        return [kept for _, kept in found[: self.keep]]

    def _shaped(self, text: str, given: Answer) -> _Kept:
        """A given answer in form. Where nothing changed, what is likely is what was likely then.

        Asked about the rest behind the form, which it never uses, the model would say the form again.
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
            # What comes right behind something new belongs to it.
            is_new[new + (old != new) : new + size] = 0.0
        if self.reading.can_make and not cut_off:
            is_new[-1:] = 1.0  # where it comes to an end
        answer = Answer(ids, logprobs.tolist(), top_ids, top_logprobs, text, finished=not cut_off)
        return _Kept(answer, is_new)

    async def _is_about(
        self, asks: Sequence[Ask], which: int, own: frozenset[str], text: str, answer: Answer
    ) -> bool:
        """It names what was asked about, or is clearly likelier there than after any of some others."""
        if names(text, own):
            return True
        if self.reading.can_make and own:  # there are enough that do
            return False
        others = [asks[(which + n) % len(asks)] for n in range(1, min(OTHERS + 1, len(asks)))]
        ids, told = answer.ids[:_TELLING], float(np.mean(answer.logprobs[:_TELLING]))
        elsewhere = [await self.teacher.mean_logprob(self.prompt(other), ids) for other in others]
        return all(told - each >= CLEARLY for each in elsewhere)

    async def _shows(self, ask: Ask, answer: Answer) -> float:
        """By how much knowing the wish makes it likelier."""
        told = float(np.mean(answer.logprobs[:_TELLING]))
        return told - await self.teacher.mean_logprob(ask.prompt_ids, answer.ids[:_TELLING])


def _source(lesson: Lesson, ask: Ask, wish: str) -> Source:
    """Filed under the complaint, and made from whoever's request it answers."""
    mine = lesson.turn.id
    others = (ask.turn_id,) if ask.turn_id not in ("", mine) else ()
    return Source("hinted", (mine, *others), lesson.turn.user, lesson.verdict.score, wish)


def echoes(text: str, wish: str) -> bool:
    """Whether an answer says the wish itself instead of following it."""
    said, wished = (tuple(word.lower() for word in _WORD.findall(t)) for t in (text, wish))
    runs = {wished[n : n + _ECHO] for n in range(len(wished) - _ECHO + 1)}
    return any(said[n : n + _ECHO] in runs for n in range(len(said) - _ECHO + 1))
