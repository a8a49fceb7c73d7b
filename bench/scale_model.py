"""The models of ``bench/scale.py``: an engine, step by step, and parts that take jobs in order.

A replica of the engine follows ``openclaw_rl/engine/scheduler.py``, step by step. Judging,
training and the ledger are queues: so many servers, first come, first served, a fixed time for each job.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

#: As ``openclaw-rl serve`` has them by default.
MAX_RUNNING, CHUNK, SMALLEST_CHUNK, MOST_STEP_S = 16, 256, 16, 0.2


@dataclass(frozen=True)
class Engine:
    """What a step takes; see ``step_costs.py``."""

    fixed_s: float
    row_s: float
    read_s: float
    max_running: int
    attend_s: float = 0.0
    context_s: float = 0.0
    prompt_s: float = 0.0
    outside_s: float = 0.0
    """Of a request's time, what passes outside the engine before its first token."""
    cached: float = 0.0
    """Tokens at the beginning of each prompt that are in the cache, since all begin alike."""
    chunk: int = CHUNK
    """The most tokens of a prompt in a step beside streams; twice that alone."""

    @classmethod
    def through(
        cls, one: float, streams: int, many: float, *prompts: tuple[int, float], max_running: int, **more: Any
    ) -> Engine:
        """From tokens/s with one stream and with ``streams``, and one or two prompts' tokens and seconds."""
        row_s = (streams / many - 1 / one) / (streams - 1)
        (short, short_s), (long, long_s) = prompts[0], prompts[-1]
        attend_s = (long_s / long - short_s / short) / (long - short) * 2 if len(prompts) > 1 else 0.0
        attend_s = max(0.0, attend_s)
        read_s = short_s / short - attend_s * short / 2
        fixed_s = 1 / one - row_s
        return cls(fixed_s, row_s, read_s, max_running, attend_s, **more)

    def step_s(self, rows: int, context: float = 0, begins: float = 0, ends: float = 0) -> float:
        """With so many streams, of so many tokens in all, and that piece of a prompt."""
        streams_s = self.row_s * rows + self.context_s * context
        if ends == begins:
            return self.fixed_s + streams_s
        # A model that was not fitted to pieces of prompts has their fixed part in ``read_s``.
        fixed_s = self.prompt_s or (self.fixed_s if rows else 0.0)
        pairs = (ends - begins) * (begins + ends) / 2
        return fixed_s + streams_s + (ends - begins) * self.read_s + pairs * self.attend_s

    def read_alone_s(self, prompt: int) -> float:
        """With nothing else to do."""
        now, seconds = min(self.cached, prompt - 1.0), 0.0
        while now < prompt:
            ends = min(prompt, now + 2 * self.chunk)
            seconds += self.step_s(0, 0, now, ends)
            now = ends
        return seconds


@dataclass
class Request:
    at: float
    prompt: int
    """Tokens to read."""
    reply: int
    history: int = 0
    """Tokens before them that are cached."""
    first: float = 0.0
    end: float = 0.0


@dataclass
class Served:
    requests: list[Request] = field(default_factory=list)

    def first_token_s(self, share: float) -> float:
        return quantile([request.first - request.at for request in self.requests], share)

    @property
    def mean_s(self) -> float:
        return statistics.fmean(r.end - r.at for r in self.requests)

    @property
    def tokens_per_s(self) -> float:
        """From the first arrival to the last token."""
        seconds = max(r.end for r in self.requests) - min(r.at for r in self.requests)
        return sum(request.reply for request in self.requests) / seconds

    @property
    def pace(self) -> float:
        """Tokens/s of all streams: so many times the median stream's."""
        return len(self.requests) * statistics.median(
            (r.reply - 1) / (r.end - r.first) for r in self.requests if r.end > r.first
        )


def quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass
class Stream:
    """A request that has a place. While ``read`` is below ``whole``, its prompt is being read."""

    request: Request
    read: float
    whole: float
    left: int
    """Tokens of the reply that are still to come."""


class Replica:
    """The scheduler's rules on the engine's costs: a step has a token of each stream whose prompt is read,
    and a piece of the oldest other prompt. Pieces shrink when a step takes too long, and grow back.
    """

    def __init__(self, engine: Engine, arrivals: Sequence[Request]) -> None:
        self.engine, self.coming = engine, deque(arrivals)
        self.waiting: deque[Request] = deque()
        self.reading: deque[Stream] = deque()
        self.streams: list[Stream] = []
        self.now, self.chunk, self.done = 0.0, engine.chunk, Served()

    def run(self, until: float = math.inf) -> Served:
        """Returns the requests that were answered by ``until``."""
        while (self.coming or self.waiting or self.reading or self.streams) and self.now < until:
            self._admit()
            if self.reading:
                self._read()
            elif self.streams:
                self._decode()
            else:
                self.now = self._next_at()
        return self.done

    def _next_at(self) -> float:
        """When the next request reaches the engine."""
        return self.coming[0].at + self.engine.outside_s if self.coming else math.inf

    def _admit(self) -> None:
        while self._next_at() <= self.now:
            self.waiting.append(self.coming.popleft())
        while self.waiting and len(self.reading) + len(self.streams) < self.engine.max_running:
            request = self.waiting.popleft()
            cached = request.history + min(self.engine.cached, request.prompt - 1)
            whole = request.history + request.prompt
            self.reading.append(Stream(request, cached, whole, request.reply))

    def _read(self) -> None:
        """One step with a piece of a prompt."""
        stream, rows = self.reading[0], len(self.streams)
        ends = min(stream.whole, stream.read + (self.chunk if rows else 2 * self.engine.chunk))
        seconds = self.engine.step_s(rows, self._context(), stream.read, ends)
        self.now += seconds
        if rows:
            self._adapt(seconds)
        stream.read = ends
        self._take(1)
        if ends == stream.whole:
            self.reading.popleft()
            stream.request.first = self.now
            self.streams.append(stream)
            stream.left -= 1
            self._finish()

    def _adapt(self, seconds: float) -> None:
        if seconds > MOST_STEP_S:
            self.chunk = max(SMALLEST_CHUNK, int(self.chunk * MOST_STEP_S / seconds))
        elif seconds < 0.6 * MOST_STEP_S:
            self.chunk = min(self.engine.chunk, self.chunk * 5 // 4)

    def _decode(self) -> None:
        """As many steps as change nothing: until a stream ends or a request comes that can be admitted."""
        rows, each = len(self.streams), self.engine.step_s(len(self.streams), self._context())
        count, more = min(stream.left for stream in self.streams), self.engine.context_s * rows
        if rows < self.engine.max_running and (wait := self._next_at() - self.now) < math.inf:
            count = min(count, _steps_within(wait, each, more))
        self.now += count * each + more * count * (count - 1) / 2
        self._take(count)

    def _context(self) -> float:
        return sum(stream.read for stream in self.streams)

    def _take(self, count: int) -> None:
        """Every stream has got so many tokens."""
        for stream in self.streams:
            stream.left -= count
            stream.read += count
        self._finish()

    def _finish(self) -> None:
        for stream in [stream for stream in self.streams if stream.left <= 0]:
            stream.request.end = self.now
            self.done.requests.append(stream.request)
            self.streams.remove(stream)


def _steps_within(wait: float, each: float, more: float) -> int:
    """How many steps, each ``more`` longer than the one before, until ``wait`` has passed."""
    if more <= 0:
        return max(1, math.ceil(wait / each))
    half = each - more / 2
    return max(1, math.ceil((math.sqrt(half * half + 2 * more * max(0.0, wait)) - half) / more))


def serve(engine: Engine, arrivals: Sequence[Request], until: float = math.inf) -> Served:
    return Replica(engine, arrivals).run(until)


def waits(arrivals: Sequence[float], servers: int, service_s: float) -> list[float]:
    """Seconds from each arrival until one of ``servers`` begins with it, first come, first served."""
    free = [0.0] * servers
    found = []
    for at in arrivals:
        begins = max(at, free[0])
        heapq.heapreplace(free, begins + service_s)
        found.append(begins - at)
    return found


def servers_for(arrivals: Sequence[float], service_s: float, wait_s: float, share: float = 0.95) -> int:
    """The fewest servers with which that share of the jobs waits no longer than ``wait_s``."""
    low, high = 0, 1
    while quantile(waits(arrivals, high, service_s), share) > wait_s:
        low, high = high, 2 * high
    while low + 1 < high:
        middle = (low + high) // 2
        if quantile(waits(arrivals, middle, service_s), share) > wait_s:
            low = middle
        else:
            high = middle
    return high
