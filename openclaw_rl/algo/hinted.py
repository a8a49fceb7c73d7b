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
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openclaw_rl.relevance import CLEARLY, OTHERS, names, own_words
from openclaw_rl.types import (
    Answer,
    Ask,
    Batch,
    Example,
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
#: Of the requests, those that must find an answer.
_LEAST_SHARE = 0.25


@dataclass(frozen=True)
class Hinted:
    requests: int = 16
    """On so many a wish is taught per complaint."""
    answers: int = 4
    """So many are given to each."""
    keep: int = 1
    """So many of them are learned from."""
    own_share: float = 0.5
    """Of what is aimed at, the kept answer's own token; the rest is all that the told model held likely."""
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
        wish = " ".join(lesson.wishes)
        asks = lesson.asks(wish, self.requests)
        seed = int.from_bytes(hashlib.sha256(lesson.turn.id.encode()).digest()[:4], "big")
        given = await asyncio.gather(
            *(teacher.answer(ask.hinted_ids, self.answers, seed + 97 * n) for n, ask in enumerate(asks))
        )
        own = own_words([ask.text for ask in asks])
        kept = await asyncio.gather(
            *(self._best(teacher, asks, n, own[n], wish, answers) for n, answers in enumerate(given))
        )
        if sum(map(bool, kept)) < _LEAST_SHARE * len(asks):
            return []
        source = Source("hinted", (lesson.turn.id,), lesson.turn.user, lesson.verdict.score, wish)
        return [
            distribution_example(ask, answer, source, self.own_share)
            for ask, best in zip(asks, kept, strict=True)
            for answer in best
        ]

    async def _best(
        self,
        teacher: Teacher,
        asks: Sequence[Ask],
        which: int,
        own: frozenset[str],
        wish: str,
        answers: Sequence[Answer],
    ) -> list[Answer]:
        """Those of one request's answers that are about it and show the wish most."""
        usable = [a for a in answers if a.ids and not teacher.degenerate(a.text)]
        usable = [a for a in usable if not echoes(a.text, wish)]
        finished = [a for a in usable if a.finished]
        if _FINISHED * len(finished) >= len(usable):  # unless the wish makes them long
            usable = finished
        found = []
        for answer in usable:
            ids, told = answer.ids[:_TELLING], float(np.mean(answer.logprobs[:_TELLING]))
            if not names(answer.text, own) and not await _fits(teacher, asks, which, ids, told):
                continue
            shows = told - await teacher.mean_logprob(asks[which].prompt_ids, ids)
            if shows > 0 or not wish:
                found.append((shows, answer))
        found.sort(key=lambda each: -each[0])
        return [answer for _, answer in found[: self.keep]]

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        return Batch(examples, self.needs.loss, scale=self.scale)


def echoes(text: str, wish: str) -> bool:
    """Whether an answer says the wish itself instead of following it."""
    said, wished = (tuple(word.lower() for word in _WORD.findall(t)) for t in (text, wish))
    runs = {wished[n : n + _ECHO] for n in range(len(wished) - _ECHO + 1)}
    return any(said[n : n + _ECHO] in runs for n in range(len(said) - _ECHO + 1))


async def _fits(teacher: Teacher, asks: Sequence[Ask], which: int, reply_ids: list[int], told: float) -> bool:
    """Whether it is clearly likelier after its own request than after any of some others."""
    others = [asks[(which + n) % len(asks)] for n in range(1, min(OTHERS + 1, len(asks)))]
    elsewhere = [await teacher.mean_logprob(other.hinted_ids, reply_ids) for other in others]
    return all(told - each >= CLEARLY for each in elsewhere)
