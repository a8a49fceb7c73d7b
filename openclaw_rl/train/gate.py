"""May this candidate serve? Checks on held-out material, each with a value and a bound.

A candidate is loaded next to the serving version and examined at low priority (``exam.py``): it answers the
user's own recent requests and others, facts, sums, reading questions and jobs with a system prompt. The gate
checks that its replies fit their requests and are fluent, and that it still gets right what the base gets
right. It is compared with the plain base, with the hinted base (following a wish may cost some answers;
learning it may cost no more) and with its parent.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from openclaw_rl.forms import NOTHING_READ, Reading
from openclaw_rl.scopes import is_environment
from openclaw_rl.train.exam import (
    Examiner,
    ExamItem,
    ReplyCheck,
    ReplyStats,
    draw_items,
    draw_tool_items,
    keep_newest,
)
from openclaw_rl.types import (
    BASE_VERSION,
    EVERYONE,
    Ask,
    Engine,
    Json,
    Renderer,
    Scope,
    StepReport,
    TurnRecord,
)

#: The check whose value is the share of replies with the wished-for form.
IN_FORM = "in form"
_MIN_HELD_OUT = 3
#: Drawn from 92 facts, sums and reading questions, and from 60 jobs.
_FIRST_ITEMS, _ITEMS = 12, 24
#: Drawn from 24 tool calls.
_CALLS = 8
#: Below this share of right answers the reference is guessing.
_LEAST_SHARE = 0.1
_LEAST_SPECIFICITY = 0.1
#: Requests asked first; the rest are asked unless the candidate is as good as the base on these.
_FIRST_ASKS = 12
#: The candidate may miss one reply's subject more than the base and still count as equally good. On a dozen
#: replies this is harder to meet by luck than the bound on all of them.
_ONE_REPLY = 1.01 / _FIRST_ASKS
#: Shares of replies, and how many standard errors below its bound such a share is no accident.
_SHARES = {"broken replies", "on topic", "on topic at once", IN_FORM}
_NO_ACCIDENT = 3.0
#: Nats a token: two samples of one model differ by that much.
_AS_LIKELY = 0.1


@dataclass(frozen=True, slots=True)
class Bounds:
    """Largest allowed degradations; see docs/lab/gate.md."""

    lost: float = 0.25
    """Share lost of the facts, sums and reading questions that the reference gets right."""
    lost_jobs: float = 0.45
    """Share lost of the jobs with a system prompt that the reference gets right."""
    off_topic_at_once: float = 0.3
    """Increase in the share of off-topic replies over the parent."""
    tools: float = 0.5
    """Drop in the mean log-prob of a known tool call below the base, in nats a token."""
    lost_calls: float = 0.35
    """Share lost of the forced tool calls that the base gets right."""
    broken: float = 0.1
    """Increase in the share of broken replies over the base."""
    out_of_form: float = 0.15
    """Increase over the parent in the share of replies that lack the requested form."""
    off_topic: float = 0.2
    """Increase in the share of off-topic replies over the base."""
    specificity: float = 0.5
    """Share that must remain of how much likelier a reply is after its own request than after another."""
    strangeness: float = 0.7
    """Drop in the replies' mean log-prob under the hinted base, below the references', in nats a token."""
    terse: float = 0.3
    """Share that must remain of the shorter reference's length."""
    held_out: float = 0.1
    """Move of held-out turns' mean log-prob in the wrong direction, in nats a token."""


@dataclass(frozen=True, slots=True)
class GateCheck:
    name: str
    value: float
    bound: float
    passed: bool
    side: Literal["at least", "at most"] = "at least"
    """Where a value must be that passes, from the bound."""


@dataclass(frozen=True, slots=True)
class GateResult:
    passed: bool
    reason: str
    checks: tuple[GateCheck, ...]
    as_told: Mapping[str, bool] = field(default_factory=dict)
    """Wish -> whether replies met it as well as the base's do when it is told; the note is then withdrawn."""

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Subject:
    """The requests and wish that a version is examined on."""

    asks: Sequence[Ask]
    wish: str = ""
    reading: Reading = NOTHING_READ
    wishes: Sequence[str] = ()
    """Its parts, as the person said them."""


class Gate:
    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        encode: Callable[[str], list[int]],
        degeneration: Callable[[str], str | None],
        everywhere: bool = True,
        bounds: Bounds | None = None,
    ) -> None:
        """``everywhere``: versions serve under any system prompt, so they get jobs with one, too."""
        self._renderer, self._encode, self.everywhere = renderer, encode, everywhere
        self._bounds = bounds or Bounds()
        self._examiner = Examiner(engine, renderer, degeneration)
        self._stats: dict[tuple[int, str], ReplyStats] = {}
        """By (version, wish)."""

    async def check(
        self,
        version: int,
        parent: int,
        report: StepReport,
        held_out: Sequence[tuple[TurnRecord, int]],
        subjects: Sequence[Subject],
        scope: Scope = EVERYONE,
    ) -> GateResult:
        """``version`` must be loaded, unless the report says that its weights are not finite."""
        if not report.finite:
            return _result([GateCheck("finite", 0.0, 1.0, False)])
        checks = [GateCheck("finite", 1.0, 1.0, True)]
        if is_environment(scope):  # it has no users; its task success is measured in the environment
            return _result([*checks, *await self._tools(version)])
        # Concurrently: the engine answers a batch for little more than the cost of one.
        found = await asyncio.gather(
            self._tools(version),
            self._knowledge(version, [subject.wish for subject in subjects]),
            self._replies_for_all(version, parent, subjects),
        )
        known, knows, (replies, as_told) = found
        checks += [*known, *knows, *replies]
        if len(held_out) >= _MIN_HELD_OUT:
            value = await self._held_out(version, parent, held_out)
            checks.append(_at_least("held-out turns", value, -self._bounds.held_out))
        return _result(checks, as_told)

    # --- what it knows ---------------------------------------------------------------------------

    async def _knowledge(self, version: int, wishes: Sequence[str]) -> list[GateCheck]:
        checks = []
        kinds = [("facts", self._bounds.lost, False), ("jobs", self._bounds.lost_jobs, True)]
        for name, most, is_bound in kinds if self.everywhere else kinds[:1]:
            # Few items are noisy: the first ones settle it only if nothing was lost on them, and a
            # candidate is rejected only after all of them.
            for number, enough in ((_FIRST_ITEMS, 1.0), (_ITEMS, 1 - most), (None, 1 - most)):
                items = draw_items(is_bound, number, seed=version)
                check = _at_least(name, await self._left(version, items, wishes), 1 - most)
                if check.value >= enough:
                    break
            checks.append(check)
        return checks

    async def _left(self, version: int, items: Sequence[ExamItem], wishes: Sequence[str]) -> float:
        """Right answers relative to the reference's.

        With several users, the reference is the one whose wish costs the fewest right answers.
        """
        plain = _mean(await self._examiner.right(BASE_VERSION, items))
        told = [_mean(await self._examiner.right(BASE_VERSION, items, wish)) for wish in wishes]
        reference = max(min(plain, share) for share in told)
        if reference < _LEAST_SHARE:  # the reference knows too little to compare
            return 1.0
        return _mean(await self._examiner.right(version, items)) / reference

    async def _tools(self, version: int) -> list[GateCheck]:
        worse = await self._tool_call_nll(version) - await self._tool_call_nll(BASE_VERSION)
        checks = [_at_most("tool calls", worse, self._bounds.tools)]
        if self._examiner.can_call:
            checks.append(await self._calls(version))
        return checks

    async def _tool_call_nll(self, version: int) -> float:
        """Negative log-prob of a known tool call that nothing forces."""
        item = next(item for item in draw_tool_items(None, 0) if item.name == "read")
        call = json.dumps({"name": item.name, "arguments": {"path": item.values[0]}})
        prompt = self._renderer.render(item.messages, item.tools)
        said = self._encode(f"<tool_call>\n{call}\n</tool_call>")
        return -await self._examiner.mean_logprob(prompt, said, version)

    async def _calls(self, version: int) -> GateCheck:
        """Right tool and arguments when a call is forced, relative to the base."""
        for number in (_CALLS, None):
            items = draw_tool_items(number, seed=version)
            reference = _mean(await self._examiner.calls_right(BASE_VERSION, items))
            left = 1.0
            if reference >= _LEAST_SHARE:
                left = _mean(await self._examiner.calls_right(version, items)) / reference
            check = _at_least("calls right", left, 1 - self._bounds.lost_calls)
            if check.passed:
                break
        return check

    # --- how it talks ----------------------------------------------------------------------------

    async def _replies_for_all(
        self, version: int, parent: int, subjects: Sequence[Subject]
    ) -> tuple[list[GateCheck], dict[str, bool]]:
        """Each check once: its first failure for any subject, otherwise its first result.

        And which wishes the replies meet as well as if they were told.
        """
        found: dict[str, GateCheck] = {}
        as_told: dict[str, bool] = {}
        of_each = await asyncio.gather(*(self._replies(version, parent, subject) for subject in subjects))
        for subject, (checks, is_as_told) in zip(subjects, of_each, strict=True):
            for check in checks:
                if check.name not in found or (found[check.name].passed and not check.passed):
                    found[check.name] = check
            for wish in subject.wishes:
                as_told[wish] = is_as_told and as_told.get(wish, True)
        return list(found.values()), as_told

    async def _replies(self, version: int, parent: int, subject: Subject) -> tuple[list[GateCheck], bool]:
        check_replies, checks, is_as_told = list[ReplyCheck](), list[GateCheck](), False
        for number in _numbers_of_replies(len(subject.asks)):
            which = range(len(check_replies), number)
            more, base, hinted = await asyncio.gather(
                self._examiner.check_replies(version, subject.asks, which, reading=subject.reading),
                self._reference(subject, number, hinted=False),
                self._reference(subject, number, hinted=True),
            )
            check_replies += more
            now = ReplyStats.of(check_replies)
            is_as_told = _is_as_told(now, hinted)
            keep_newest(self._stats, (version, subject.wish), now)
            checks = self._compare_replies(now, base, hinted, await self._stats_of(parent, base, subject))
            # A dozen replies are noisy: unless the candidate is clearly as good, ask the rest.
            as_good = now.on_topic >= base.on_topic - _ONE_REPLY and now.broken <= base.broken
            passed = all(check.passed for check in checks)
            if (passed and (as_good or number >= len(subject.asks))) or _is_hopeless(checks, number):
                break
        return checks, is_as_told

    def _compare_replies(
        self, now: ReplyStats, base: ReplyStats, hinted: ReplyStats, before: ReplyStats
    ) -> list[GateCheck]:
        bounds = self._bounds
        strange = now.strangeness - max(base.strangeness, hinted.strangeness)
        reference = min(base.specificity, hinted.specificity)
        # A share of a reference near zero would allow nothing or anything.
        specific = reference - (1 - bounds.specificity) * max(reference, _LEAST_SPECIFICITY)
        form = []
        if now.in_form is not None and before.in_form is not None:
            form = [_at_least(IN_FORM, now.in_form, before.in_form - bounds.out_of_form)]
        return [
            *form,
            # The told base is no excuse here: whoever asked for something did not ask for broken replies.
            _at_most("broken replies", now.broken - base.broken, bounds.broken),
            _at_least("on topic", now.on_topic, base.on_topic - bounds.off_topic),
            _at_least("on topic at once", now.on_topic, before.on_topic - bounds.off_topic_at_once),
            _at_least("specificity", now.specificity, specific),
            _at_most("strangeness", strange, bounds.strangeness),
            _at_least(
                "length", now.length, bounds.terse * min(base.length, base.formed_length, hinted.length)
            ),
        ]

    async def _stats_of(self, parent: int, base: ReplyStats, subject: Subject) -> ReplyStats:
        """The parent's statistics from its own gate; measured again for another wish or after a restart."""
        if parent == BASE_VERSION:
            return base
        known = parent, subject.wish
        if known not in self._stats:
            which = range(len(subject.asks))[:_FIRST_ASKS]
            check_replies = await self._examiner.check_replies(
                parent, subject.asks, which, reading=subject.reading
            )
            keep_newest(self._stats, known, ReplyStats.of(check_replies))
        return self._stats[known]

    async def _reference(self, subject: Subject, number: int, *, hinted: bool) -> ReplyStats:
        """The base's statistics on the first ``number`` requests."""
        return ReplyStats.of(
            await self._examiner.check_replies(
                BASE_VERSION, subject.asks, range(number), hinted=hinted, reading=subject.reading
            )
        )

    async def _held_out(self, version: int, parent: int, turns: Sequence[tuple[TurnRecord, int]]) -> float:
        """Mean change of log-prob on held-out turns, signed so that learning makes it positive."""
        moves = []
        for turn, score in turns:
            ids = [token.id for token in turn.tokens]
            now, before = [
                await self._examiner.mean_logprob(turn.prompt_ids, ids, v) for v in (version, parent)
            ]
            moves.append(score * (now - before))
        return _mean(moves)


def _numbers_of_replies(asks: int) -> list[int]:
    """How many replies to have before each look: a few, one to each request, and two if that is too few.

    Sampling breaks a reply of any model now and then, so nothing is rejected for one reply to each request.
    """
    return sorted({min(_FIRST_ASKS, asks), asks, 2 * asks})


def _is_hopeless(checks: Sequence[GateCheck], replies: int) -> bool:
    """Whether a share of so many replies misses its bound by more than chance explains."""
    error = 0.5 / math.sqrt(replies)
    failed = (check for check in checks if check.name in _SHARES and not check.passed)
    return any(abs(check.value - check.bound) > _NO_ACCIDENT * error for check in failed)


def _at_most(name: str, value: float, bound: float) -> GateCheck:
    return GateCheck(name, value, bound, value <= bound, "at most")


def _at_least(name: str, value: float, bound: float) -> GateCheck:
    return GateCheck(name, value, bound, value >= bound)


def _is_as_told(now: ReplyStats, hinted: ReplyStats) -> bool:
    """Whether replies meet the wish as well as the base's do when their prompt states it.

    A wish about form is checked by its form; of any other, how likely the replies are under the told base.
    """
    if now.in_form is not None and hinted.in_form is not None:
        meets = now.in_form >= hinted.in_form - _ONE_REPLY
    else:
        meets = now.strangeness <= hinted.strangeness + _AS_LIKELY
    return meets and now.on_topic >= hinted.on_topic - _ONE_REPLY


def _result(checks: list[GateCheck], as_told: Mapping[str, bool] | None = None) -> GateResult:
    failed = [f"{c.name} {c.value:.2f} (bound {c.bound:.2f})" for c in checks if not c.passed]
    return GateResult(not failed, "; ".join(failed), tuple(checks), as_told or {})


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
