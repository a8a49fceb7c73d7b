"""The models of ``bench/scale.py``: an engine, step by step, and parts that take jobs in order.

A replica of the engine runs one token of each stream and a chunk of one prompt in each step. Judging,
training and the ledger are queues: so many servers, first come, first served, a fixed time for each job.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Engine:
    """A step takes ``fixed_s`` plus ``row_s`` per stream, and the time that a piece of a prompt takes."""

    fixed_s: float
    row_s: float
    read_s: float
    """Per token of a prompt; attention adds ``attend_s`` times the square of the prompt."""
    max_running: int
    attend_s: float = 0.0
    chunk: int = 256
    """Of a prompt, beside streams; twice that alone."""

    @classmethod
    def through(
        cls, one: float, streams: int, many: float, *prompts: tuple[int, float], max_running: int
    ) -> Engine:
        """From tokens/s with one stream and with ``streams``, and one or two prompts' tokens and seconds."""
        row_s = (streams / many - 1 / one) / (streams - 1)
        (short, short_s), (long, long_s) = prompts[0], prompts[-1]
        attend_s = (long_s / long - short_s / short) / (long - short) if len(prompts) > 1 else 0.0
        attend_s = max(0.0, attend_s)
        return cls(1 / one - row_s, row_s, short_s / short - attend_s * short, max_running, attend_s)

    def step_s(self, rows: int, begins: int = 0, ends: int = 0) -> float:
        """With so many streams and that piece of a prompt."""
        read_s = (ends - begins) * self.read_s + (ends**2 - begins**2) * self.attend_s
        return (self.fixed_s + self.row_s * rows if rows else 0.0) + read_s


@dataclass
class Request:
    at: float
    prompt: int
    reply: int
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
            (r.reply - 1) / (r.end - r.first) for r in self.requests
        )


def quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Replica:
    """Counts time in seconds and in steps; a stream ends a known number of steps after its first token."""

    def __init__(self, engine: Engine, arrivals: Sequence[Request]) -> None:
        self.engine, self.coming = engine, deque(arrivals)
        self.waiting: deque[tuple[Request, int]] = deque()
        self.running: list[tuple[int, int, Request]] = []
        self.now, self.step, self.done = 0.0, 0, Served()

    def run(self, until: float = math.inf) -> Served:
        """Returns the requests that were answered by ``until``."""
        while (self.coming or self.waiting or self.running) and self.now < until:
            while self.coming and self.coming[0].at <= self.now:
                self.waiting.append((self.coming.popleft(), 0))
            if not self.waiting and not self.running:
                self.now = self.coming[0].at
            elif self.waiting and len(self.running) < self.engine.max_running:
                self._read()
            else:
                self._decode()
        return self.done

    def _read(self) -> None:
        rows, (request, begins) = len(self.running), self.waiting.popleft()
        ends = min(request.prompt, begins + self.engine.chunk * (1 if rows else 2))
        self._advance(1, self.engine.step_s(rows, begins, ends))
        if ends < request.prompt:
            self.waiting.appendleft((request, ends))
            return
        request.first = self.now
        # The number makes the order of streams that end together defined.
        heapq.heappush(self.running, (self.step + request.reply - 1, len(self.done.requests) + rows, request))
        self._finish()

    def _decode(self) -> None:
        """As many steps as change nothing: until a stream ends or a request comes that can be admitted."""
        rows = len(self.running)
        each, count = self.engine.step_s(rows), self.running[0][0] - self.step
        if self.coming and rows < self.engine.max_running:
            count = min(count, math.ceil((self.coming[0].at - self.now) / each))
        count = max(1, count)
        self._advance(count, count * each)

    def _advance(self, steps: int, seconds: float) -> None:
        self.step += steps
        self.now += seconds
        self._finish()

    def _finish(self) -> None:
        while self.running and self.running[0][0] <= self.step:
            request = heapq.heappop(self.running)[2]
            request.end = self.now
            self.done.requests.append(request)


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
