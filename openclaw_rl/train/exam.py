"""The exam a candidate takes before it may serve: replies to requests, and items with checkable answers.

Every figure is compared with two references on the same requests: the plain base model, and the hinted base
(its prompt states the wish), which is what learning aims at. A wish changes the form of replies; their
subject, their fluency and what the model knows must not get worse than the references.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TypeVar

from openclaw_rl.forms import NOTHING_READ, Reading
from openclaw_rl.relevance import CLEARLY, OTHERS, loops, names, own_words, stutters
from openclaw_rl.types import (
    BASE_VERSION,
    GRAMMAR_DIALECT,
    Ask,
    Engine,
    GenerateRequest,
    Message,
    Priority,
    Renderer,
    SamplingParams,
    ScoreRequest,
    Token,
    Tool,
)

K = TypeVar("K")
V = TypeVar("V")
_TEMPERATURE, _TOP_P, _MAX_TOKENS = 0.7, 0.9, 64
#: Every second request is answered at full length: many versions degenerate only late in a reply.
_LONG_EVERY, _LONG_TOKENS = 2, 192
_ITEM_TOKENS = 20
_CALL_TOKENS, _CALL_CHARS, _TOOLS_OFFERED = 64, 48, 3
#: Jobs with a system prompt demand a short answer; a longer one is wrong.
_FEW_WORDS = 8
#: Concurrent requests: a batched engine step costs about the same for all of them.
_AT_ONCE = 16
_WORD = re.compile(r"[^\W_]+")
_LEAST_WORDS, _LEAST_DIFFERENT = 3, 0.4
_ECHO_SHARE = 0.8
#: With fewer replies that can be checked for the form, its rate is not reported.
_LEAST_IN_FORM = 6
#: The base's answers and scores that are kept, so that each is computed once.
_KEPT = 2048
#: The tools are offered in this many different groupings, so that the base's calls are soon all known.
_GROUPINGS = 3


@dataclass(frozen=True, slots=True)
class ExamItem:
    messages: list[Message]
    answers: tuple[str, ...]
    bound: bool
    """Whether a system prompt says exactly how to answer, so that no wish from a chat applies."""

    def is_right(self, reply: str) -> bool:
        if self.bound and len(reply.split()) > _FEW_WORDS:
            return False
        return any(re.search(rf"(?<!\w){re.escape(a)}", reply, re.IGNORECASE) for a in self.answers)


@dataclass(frozen=True, slots=True)
class ToolItem:
    """A request that calls for one of the offered tools."""

    messages: list[Message]
    tools: list[Tool]
    name: str
    values: tuple[str, ...]
    """Strings that its arguments must contain."""

    def is_right(self, reply: str) -> bool:
        text = reply.lower()
        return f'"{self.name}"' in text and all(value in text for value in self.values)


@dataclass(frozen=True, slots=True)
class ReplyCheck:
    """Measurements of one reply."""

    broken: bool
    """Empty, repetitive, or an echo of the request."""
    gap: float
    """Log-prob of the reply after its own request minus after another one, in nats a token."""
    on_topic: bool
    """It names the subject of the request, or is clearly likelier after it than after others."""
    strangeness: float
    """Negative log-prob under the hinted base, in nats a token."""
    length: int
    in_form: bool | None = None
    """Whether it has the requested form; None if no form could be read, or the reply was cut off."""
    formed_length: float = math.inf
    """Its length once it is cut to the requested form; infinite if it is not."""


@dataclass(frozen=True, slots=True)
class ReplyStats:
    """Means over a version's replies."""

    broken: float
    specificity: float
    on_topic: float
    strangeness: float
    length: float
    in_form: float | None = None
    formed_length: float = math.inf

    @classmethod
    def of(cls, check_replies: Sequence[ReplyCheck]) -> ReplyStats:
        hinted = [check.in_form for check in check_replies if check.in_form is not None]
        return cls(
            broken=_mean([check.broken for check in check_replies]),
            specificity=_mean([check.gap for check in check_replies]),
            on_topic=_mean([check.on_topic for check in check_replies]),
            strangeness=_mean([check.strangeness for check in check_replies]),
            length=_mean([check.length for check in check_replies]),
            in_form=_mean(hinted) if len(hinted) >= _LEAST_IN_FORM else None,
            formed_length=_mean([min(check.length, check.formed_length) for check in check_replies]),
        )


class Examiner:
    def __init__(self, engine: Engine, renderer: Renderer, degeneration: Callable[[str], str | None]) -> None:
        self._engine, self._renderer, self._degeneration = engine, renderer, degeneration
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._answers: dict[tuple[object, ...], list[Token]] = {}
        """What the base said, by prompt, length, temperature, seed and grammar."""
        self._scores: dict[tuple[tuple[int, ...], int], float] = {}
        """What the base thinks of replies, by (prompt with reply, length of the prompt)."""

    async def check_replies(
        self,
        version: int,
        asks: Sequence[Ask],
        which: Sequence[int],
        *,
        hinted: bool = False,
        reading: Reading = NOTHING_READ,
    ) -> list[ReplyCheck]:
        """``which`` are indices of ``asks``, past their end once more from the beginning: another reply each.

        ``hinted`` prompts state the wish.
        """
        own = own_words([ask.text for ask in asks])
        return await asyncio.gather(
            *(self._check_reply(version, asks, n, own[n % len(own)], hinted, reading) for n in which)
        )

    async def _check_reply(
        self,
        version: int,
        asks: Sequence[Ask],
        which: int,
        own: frozenset[str],
        hinted: bool,
        reading: Reading,
    ) -> ReplyCheck:
        again, place = divmod(which, len(asks))
        ask = asks[place]
        tokens = await self._reply(ask.hinted_ids if hinted else ask.prompt_ids, version, place, again)
        reply = [token.id for token in tokens]
        text, scored = self._text(reply), reply[:_MAX_TOKENS]
        others = [asks[(which + n) % len(asks)] for n in range(1, min(OTHERS + 1, len(asks)))]
        if hinted and version == BASE_VERSION:  # recorded while sampling
            likely = _mean([token.logprob for token in tokens[:_MAX_TOKENS]])
        else:
            likely = await self._mean(ask.hinted_ids, scored)
        gap = likely - await self._mean(others[0].hinted_ids, scored) if others else 0.0
        on_topic = names(text, own)
        if not on_topic and gap >= CLEARLY:
            more = await asyncio.gather(*(self._mean(other.hinted_ids, scored) for other in others[1:]))
            on_topic = all(likely - each >= CLEARLY for each in more)
        broken = self.is_broken(text, self._text(ask.prompt_ids))
        finished = bool(reply) and reply[-1] in self._renderer.stop_ids
        in_form = reading.meets(text) if reading.can_tell(finished) else None
        made = (reading.made(text) if reading.can_make else None) or text
        formed = len(reply) * len(made) / max(len(text), 1)
        return ReplyCheck(broken, gap, on_topic, -likely, len(reply), in_form, formed)

    async def right(self, version: int, items: Sequence[ExamItem], wish: str = "") -> list[bool]:
        """Whether each item is answered right; prompts state the wish where it applies."""
        prompts = [self._renderer.render(_with_wish(item, wish), []) for item in items]
        replies = await asyncio.gather(*(self._answer(prompt, version) for prompt in prompts))
        return [item.is_right(self._text(reply)) for item, reply in zip(items, replies, strict=True)]

    @property
    def can_call(self) -> bool:
        return self._engine.capabilities.grammar == GRAMMAR_DIALECT

    async def calls_right(self, version: int, items: Sequence[ToolItem]) -> list[bool]:
        """Whether the right tool is called with the right arguments when a call is forced."""
        sampling = SamplingParams(_CALL_TOKENS, temperature=0.0)
        replies = await asyncio.gather(
            *(
                self._generate(
                    self._renderer.render(item.messages, item.tools),
                    sampling,
                    version,
                    self._renderer.tool_grammar(item.tools, _CALL_CHARS),
                )
                for item in items
            )
        )
        said = [self._text([token.id for token in reply]) for reply in replies]
        return [item.is_right(text) for item, text in zip(items, said, strict=True)]

    def is_broken(self, text: str, request: str) -> bool:
        words = [word.lower() for word in _WORD.findall(text)]
        if len(words) < _LEAST_WORDS or len(set(words)) < _LEAST_DIFFERENT * min(len(words), 60):
            return True
        asked = {word.lower() for word in _WORD.findall(request)}
        echoed = sum(word in asked for word in words) / len(words)
        repeats = stutters(text) or loops(text) or self._degeneration(text) is not None
        return repeats or echoed > _ECHO_SHARE

    async def mean_logprob(self, prompt_ids: list[int], reply_ids: list[int], version: int) -> float:
        return await self._mean(prompt_ids, reply_ids, version)

    async def _answer(self, prompt_ids: list[int], version: int) -> list[int]:
        sampling = SamplingParams(_ITEM_TOKENS, temperature=0.0)
        return [token.id for token in await self._generate(prompt_ids, sampling, version)]

    async def _reply(self, prompt_ids: list[int], version: int, place: int, again: int) -> list[Token]:
        # The second time, the other requests are answered at full length.
        most = _MAX_TOKENS if (place + again) % _LONG_EVERY else _LONG_TOKENS
        # By request, so that the same one is answered the same way in any place, and others are not alike.
        seed = zlib.crc32(repr(prompt_ids).encode()) + again
        sampling = SamplingParams(most, _TEMPERATURE, _TOP_P, seed=seed)
        return await self._generate(prompt_ids, sampling, version)

    async def _generate(
        self, prompt_ids: list[int], sampling: SamplingParams, version: int, grammar: str | None = None
    ) -> list[Token]:
        request = GenerateRequest(
            prompt_ids,
            sampling,
            stop_ids=self._renderer.stop_ids,
            policy_version=version,
            priority=Priority.JUDGE,
            top_logprobs=0,
            grammar=grammar,
        )
        key = (tuple(prompt_ids), sampling.max_tokens, sampling.temperature, sampling.seed, grammar)
        if version == BASE_VERSION and key in self._answers:
            return self._answers[key]
        async with self._places:
            said = [token async for token in self._engine.generate(request)]
        if version == BASE_VERSION:
            keep_newest(self._answers, key, said)
        return said

    async def _mean(self, prompt_ids: list[int], reply_ids: list[int], version: int = BASE_VERSION) -> float:
        key = (*prompt_ids, *reply_ids), len(prompt_ids)
        if not reply_ids:  # some servers leave the token out that ends a reply
            return 0.0
        if version == BASE_VERSION and key in self._scores:
            return self._scores[key]
        async with self._places:
            scores = await self._engine.score(ScoreRequest(list(key[0]), key[1], policy_version=version))
        mean = _mean(scores.logprobs)
        if version == BASE_VERSION:
            keep_newest(self._scores, key, mean)
        return mean

    def _text(self, ids: Sequence[int]) -> str:
        detokenizer = self._renderer.detokenizer()
        said = [i for i in ids if i not in self._renderer.stop_ids]
        return "".join(detokenizer.feed(i) for i in said) + detokenizer.finish()


def draw_items(bound: bool, number: int | None, seed: int) -> list[ExamItem]:
    """A fresh sample for every version, a larger one beginning with a smaller; None for all items."""
    every = [item for item in map(_item, _lines("gate_items.txt")) if item.bound == bound]
    return random.Random(seed).sample(every, len(every))[:number]


def draw_tool_items(number: int | None, seed: int) -> list[ToolItem]:
    """Tool requests, drawn likewise. Neighbours offer the same tools, so their prompts share a prefix."""
    known = json.loads(resources.files(__package__).joinpath("gate_tools.json").read_text(encoding="utf-8"))
    chance = random.Random(seed)
    tools: list[Tool] = random.Random(seed % _GROUPINGS).sample(known["tools"], len(known["tools"]))
    groups = []
    for first in range(0, len(tools), _TOOLS_OFFERED):
        # The last few tools are offered with others, so that there is always a choice.
        offered = tools[max(0, min(first, len(tools) - _TOOLS_OFFERED)) :][:_TOOLS_OFFERED]
        own = {tool["name"] for tool in tools[first : first + _TOOLS_OFFERED]}
        groups.append(
            [
                ToolItem([{"role": "user", "content": asked}], offered, name, tuple(values))
                for asked, name, values in known["requests"]
                if name in own
            ]
        )
    return list(itertools.chain(*chance.sample(groups, len(groups))))[:number]


def gate_requests() -> list[str]:
    return _lines("gate_requests.txt")


def _item(line: str) -> ExamItem:
    asked, _, answer = line.rpartition("|")
    system, bound, text = asked.rpartition("||")
    said: list[Message] = [{"role": "user", "content": text}]
    before: list[Message] = [{"role": "system", "content": system}] if bound else []
    return ExamItem([*before, *said], tuple(answer.split("/")), bool(bound))


def _with_wish(item: ExamItem, wish: str) -> list[Message]:
    if item.bound or not wish:
        return item.messages
    last = item.messages[-1]
    return [*item.messages[:-1], {**last, "content": f"{last['content']}\n\n{wish}"}]


def keep_newest(known: dict[K, V], key: K, value: V) -> None:
    """Add to a cache, and drop what was added first when it is full."""
    known[key] = value
    while len(known) > _KEPT:
        del known[next(iter(known))]


def _lines(name: str) -> list[str]:
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
