"""Turns judged turns into samples: queries the teacher, holds some turns out, queues the rest for a step."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from openclaw_rl.forms import read
from openclaw_rl.roles import is_plain
from openclaw_rl.scopes import is_environment
from openclaw_rl.train.gate import Subject
from openclaw_rl.train.prompts import Prompts
from openclaw_rl.train.queues import VerdictQueue, Wish, WishBook
from openclaw_rl.train.rollouts import NO_REWARD, NOT_FINITE, GroupSampler
from openclaw_rl.train.teacher import EngineTeacher
from openclaw_rl.types import (
    BASE_VERSION,
    UPSTREAM_VERSION,
    Algorithm,
    Ask,
    Example,
    Lesson,
    Scope,
    Source,
    TurnRecord,
    Verdict,
    distribution_example,
    text_example,
)

#: Verdicts processed before checking whether a step is due; fewer if a teacher generates answers for each.
_PAGE, _GENERATED_PAGE = 50, 8
#: The user's other requests that a wish may be taught on.
_OTHERS = 12
#: Least confidence at which a verdict shows what the model can do.
_SURELY = 0.6
#: Users' own requests on which the gate examines a version.
_GATE_OWN = 6
#: Different wishes of several users that one gate examines; each takes as long as a whole gate for one user.
_GATE_SUBJECTS = 4
#: Longest prompt plus upstream reply to learn from, in tokens; longer ones would slow a step down.
_MOST_COPIED = 2048
#: Signal of one upstream reply toward the next step: a single one triggers no step, many do.
_COPIED_STRENGTH = 0.05
#: Relative to an ordinary example's weight of 1.
_ANCHOR_WEIGHT = 3.0
NEUTRAL = "neutral: neither praise nor correction followed"
NO_LESSON = (
    "the algorithm finds nothing to learn here, such as a complaint without a word on what to do instead"
)
UNANSWERED = "told of it, the model answers too few requests to learn from; after six such it is given up"
SAME_WISH = "said once more: the complaint before it in this conversation teaches the same"
LEARNED_SINCE = "an earlier version answered; the one that serves now has learned this since"
NOTHING_LEFT = "the last wish is taken back: the version from before it serves again"
ACCEPTED = "accepted: there is nothing to change"
NO_TOKENS = "another server answered, so its tokens are not known"
OTHER_MODEL = "another model answered than the one that is trained now"


class SampleMaker:
    """Makes samples from verdicts, one at a time, in order of arrival."""

    def __init__(
        self,
        verdicts: VerdictQueue,
        algorithm: Algorithm,
        teacher: EngineTeacher,
        prompts: Prompts,
        wishes: WishBook,
        held_out_share: float,
        groups: GroupSampler | None = None,
        takes_over: bool = False,
    ) -> None:
        """``groups`` learns from episodes, ``algorithm`` from everything else; with ``takes_over``, also from
        an upstream model's replies."""
        self._takes_over = takes_over
        self._verdicts, self._algorithm, self._teacher, self._prompts = verdicts, algorithm, teacher, prompts
        self._wishes, self._held_out_share, self._groups = wishes, held_out_share, groups
        self._anchors: dict[int, Example] = {}
        self._prepared: Scope | None = None
        """The scope whose teacher is loaded."""

    async def run(self) -> int:
        """Process some of the pending verdicts; returns how many.

        Not all of them: verdicts may arrive as fast as they are processed, and a due step must not wait.
        """
        if not await asyncio.to_thread(self._verdicts.is_sampling):
            return 0
        await self._teach_changed()
        limit = _GENERATED_PAGE if self._algorithm.needs.generates else _PAGE
        pending = await asyncio.to_thread(self._verdicts.pending, limit)
        self._prepared = None
        for seq, turn_id in pending:
            await self._settle(seq, turn_id)
        groups = 0 if self._groups is None else await self._groups.run(self._teacher, self._problem_of)
        return len(pending) + groups

    async def _teach_changed(self) -> None:
        """Teach wishes that a user reworded or resumed; a wish stays queued until its samples are stored."""
        if not self._algorithm.needs.generates:
            return
        for wish in await asyncio.to_thread(self._wishes.to_teach):
            await self.teach_again(wish.turn_id)
            self._wishes.taught(wish)

    async def teach_again(self, turn_id: str) -> None:
        """Make a turn's sample anew, with the wishes of now."""
        if (judged := self._verdicts.judged(turn_id)) is None:
            return
        self._prepared = None
        try:
            examples = await self._examples(*judged)
        except ValueError:  # too long with the new wording
            examples = []
        self._verdicts.teach_again(judged[0], examples)

    async def relearn(self) -> int:
        """Learn the wishes from another model again on this one; returns how many.

        Uses the stored wishes and the requests they were made about; the answers are this model's own.
        """
        if not self._algorithm.needs.generates or not await asyncio.to_thread(self._verdicts.is_sampling):
            return 0
        found = await asyncio.to_thread(self._wishes.of_other_models, self._verdicts.fingerprint)
        for wish in found:
            self._wishes.renew(wish, self._verdicts.serving(wish.scope))
        for wish in found:
            judged = self._verdicts.judged(wish.turn_id)
            if judged is None:
                continue
            self._prepared = None
            self._verdicts.teach_again(judged[0], await self._examples(*judged))
        return len(found)

    async def anchors(self, number: int, seed: int) -> list[Example]:
        """Examples of what must not change: jobs that no wish concerns, with the base's own answers."""
        asks = self._prompts.anchors()
        chosen = random.Random(seed).sample(range(len(asks)), min(number, len(asks)))
        missing = [n for n in chosen if n not in self._anchors]
        if missing:
            await self._teacher.prepare_base()
            self._prepared = None
            answers = await asyncio.gather(*(self._teacher.likeliest(asks[n].prompt_ids) for n in missing))
            for n, answer in zip(missing, answers, strict=True):
                if answer.ids:  # some servers count the token that ends an answer out of it
                    self._anchors[n] = distribution_example(
                        asks[n], answer, Source("anchor", ()), weight=_ANCHOR_WEIGHT
                    )
        return [self._anchors[n] for n in chosen if n in self._anchors]

    def subjects(self, users: Sequence[str], scope: Scope, seed: int) -> list[Subject]:
        """What to examine a version on that was trained for these users: their requests, and some others.

        Users are grouped by their wishes. If there are too many groups, a random few are drawn per version.
        """
        people: dict[tuple[str, ...], list[str]] = {}
        for user in users or [""]:
            people.setdefault(self._wishes.texts(user, scope), []).append(user)
        drawn = random.Random(seed).sample(sorted(people), min(_GATE_SUBJECTS, len(people)))
        return [self._subject(wished, people[wished], scope, seed) for wished in drawn]

    def _subject(self, wished: tuple[str, ...], users: Sequence[str], scope: Scope, seed: int) -> Subject:
        share = -(-_GATE_OWN // len(users))
        turns = [turn for user in users for turn in self._verdicts.openers(user, scope, share)]
        wish = " ".join(wished)
        return Subject(self._prompts.gate_asks(turns[:_GATE_OWN], wish, seed), wish, read(wished), wished)

    async def _settle(self, seq: int, turn_id: str) -> None:
        found = self._verdicts.judged(turn_id)
        if found is None:
            self._verdicts.skip(seq)
            return
        turn, verdict = found
        if not verdict.trainable:
            self._verdicts.settle(seq, turn, verdict)
            return
        if (problem := self._problem_of(turn, verdict)) is not None:
            self._verdicts.settle(seq, turn, verdict, reason=problem)
            return
        if is_environment(turn.scope):
            # Samples of episodes are made per group, which may have happened already.
            if self._verdicts.of_turn(turn.id) is None:
                self._verdicts.settle(seq, turn, verdict, reason=NO_REWARD)
            else:
                self._verdicts.skip(seq)
            return
        if (problem := self._take_up(seq, turn, verdict)) is not None:
            self._verdicts.settle(seq, turn, verdict, reason=problem)
            return
        try:
            if not turn.tokens and verdict.score >= 0:
                examples = self._copied(turn, verdict)
            else:
                examples = await self._examples(turn, verdict)
        except ValueError as error:
            # A problem of this turn: too long with its hint, fewer candidates recorded than needed, …
            self._verdicts.settle(seq, turn, verdict, reason=str(error))
            return
        if not examples:
            reason = {1: ACCEPTED, 0: NEUTRAL, -1: NO_LESSON}[verdict.score]
            if verdict.score < 0 and self._algorithm.needs.generates:
                self._wishes.failed(turn)
                reason = UNANSWERED
            self._verdicts.settle(seq, turn, verdict, reason=reason)
        elif not all(np.isfinite(a).all() for made in examples for a in (made.old_NK, made.signal_NK)):
            self._verdicts.settle(seq, turn, verdict, reason=NOT_FINITE)
        else:
            # Examples of a teacher's answers do not contain the turn's own reply: nothing to hold out.
            own = not self._algorithm.needs.generates
            held_out = own and _fraction(turn.id) < self._held_out_share
            self._verdicts.settle(seq, turn, verdict, examples, held_out=held_out)

    def _problem_of(self, turn: TurnRecord, verdict: Verdict) -> str | None:
        """Why a turn cannot be learned from, whatever its verdict."""
        if verdict.source == "exclude":
            return verdict.reason
        if not turn.tokens and not (self._takes_over and turn.policy_version == UPSTREAM_VERSION):
            return NO_TOKENS
        # This model's answers as the teacher can be learned, whichever model gave the criticised reply.
        own = is_environment(turn.scope) or not self._algorithm.needs.generates
        return OTHER_MODEL if own and self._verdicts.is_foreign(turn) else None

    def _take_up(self, seq: int, turn: TurnRecord, verdict: Verdict) -> str | None:
        """Update the user's wishes from a verdict; returns the reason if nothing is to be trained."""
        if verdict.score > 0 and verdict.confidence >= _SURELY:
            self._wishes.accepted(turn, again=self._verdicts.corrected(turn) is not None)
        if verdict.score >= 0 or not self._algorithm.needs.generates:
            return None
        again, before = self._verdicts.corrected(turn), self._wishes.texts(turn.user, turn.scope)
        # If code can put answers into the form, it does not matter whether the hinted model manages to.
        counts = not (self._algorithm.needs.shapes and read(before).can_make)
        # A complaint's wishes are taught together, as one.
        hint = " ".join(hint for hint in verdict.hints if self._wishes.is_wish(hint))
        if not hint:
            return self._unexplained(seq, turn, verdict) if before else NO_LESSON
        wish = self._wishes.take_up(turn, hint, self._verdicts.serving(turn.scope), seq)
        if wish is not None and wish.problem is not None:
            return wish.problem
        if wish is None and not self._wishes.texts(turn.user, turn.scope):
            return NOTHING_LEFT
        # After a restart, the wish this turn made or took back may be known already.
        if wish is None or wish.turn_id == turn.id:
            return None
        overtaken = again is None and self._came_later(wish, turn)
        # The reply that was complained about again had the first complaint in its prompt. A note does not
        # count: small models follow their system prompt far less than what they are told in a message.
        if (again or overtaken) and counts and (problem := self._wishes.failed(turn)) is not None:
            return problem
        if (again or overtaken) and self._wishes.texts(turn.user, turn.scope) == before:
            return SAME_WISH
        if wish.versions and self._was_learned_since(turn, wish.served):
            return LEARNED_SINCE
        return None if again else self._wishes.missed(turn, seq)

    def _unexplained(self, seq: int, turn: TurnRecord, verdict: Verdict) -> str | None:
        if not _is_unexplained(turn, verdict):
            return NO_LESSON
        return LEARNED_SINCE if self._was_learned_since(turn) else self._wishes.missed(turn, seq)

    def _was_learned_since(self, turn: TurnRecord, served: int = BASE_VERSION) -> bool:
        """Whether an earlier version answered, and the serving one has learned the wish since.

        Some conversations stay with the version before. Under system prompts of other roles the base answers,
        until there is a complaint. ``served``: the version that served when the wish came.
        """
        serving = self._verdicts.serving(turn.scope)
        is_earlier = BASE_VERSION <= turn.policy_version < serving and served < serving
        return is_earlier and is_plain(self._verdicts.system_prompt(turn.id))

    def _came_later(self, wish: Wish, turn: TurnRecord) -> bool:
        """Whether the wish came from a later turn of the same session that was judged first."""
        known = self._verdicts.judged(wish.turn_id)
        return (
            known is not None
            and known[0].session_id == turn.session_id
            and known[0].created_at > turn.created_at
        )

    async def _examples(self, turn: TurnRecord, verdict: Verdict) -> list[Example]:
        if self._prepared != turn.scope:
            await self._teacher.prepare(turn.scope)
            self._prepared = turn.scope
        wishes = self._wishes.of_user(turn.user, turn.scope)
        lesson = self._lesson(turn, verdict, self._verdicts.corrected(turn), wishes)
        made = await self._algorithm.examples(lesson, self._teacher)
        said_in = tuple(wish.turn_id for wish in wishes if self._algorithm.needs.generates)
        # Set here, so that no algorithm can train another user's policy or evade erasure.
        return [
            replace(example, scope=turn.scope, source=replace(example.source, wish_ids=said_in))
            for example in made
        ]

    def _copied(self, turn: TurnRecord, verdict: Verdict) -> list[Example]:
        """An upstream model's reply that nobody complained about, verbatim."""
        if (found := self._prompts.spoken(turn)) is None or sum(map(len, found)) > _MOST_COPIED:
            return []
        source = Source("upstream", (turn.id,), turn.user, verdict.score)
        return [text_example(*found, source, _COPIED_STRENGTH)]

    def _lesson(
        self,
        turn: TurnRecord,
        verdict: Verdict,
        before: tuple[TurnRecord, Verdict] | None,
        wishes: Sequence[Wish],
    ) -> Lesson:
        """A wish is taught on the original request, not on the complaint that followed it."""
        first = before[0] if before else turn
        return Lesson(
            turn,
            verdict,
            lambda hint: self._prompts.hinted(turn, hint),
            self._lesson(*before, None, wishes) if before and verdict.score > 0 else None,
            peers=() if self._algorithm.needs.generates else self._verdicts.peers(turn),
            wishes=tuple(wish.text for wish in wishes),
            asks=partial(self._asks, first),
        )

    def _asks(self, first: TurnRecord, wish: str, number: int) -> list[Ask]:
        others = self._verdicts.openers(first.user, first.scope, _OTHERS)
        return self._prompts.asks(first, [turn for turn in others if turn.id != first.id], wish, number)


def _is_unexplained(turn: TurnRecord, verdict: Verdict) -> bool:
    """Whether somebody disliked a version's first reply without saying why.

    It is about their wishes, or what these cost: they are taught again, on this request, too.
    """
    by_people = verdict.source in ("votes", "feedback") and verdict.confidence >= _SURELY
    return by_people and turn.policy_version > BASE_VERSION and not turn.continues and not turn.tools


def _fraction(turn_id: str) -> float:
    """A number in 0..1 that depends only on the id."""
    return int.from_bytes(hashlib.sha256(turn_id.encode()).digest()[:4], "big") / 2**32
