"""Which tokens run next: continuous batching with chunked prefill and priorities.

Each step runs one token of every decoding sequence plus at most one chunk of one prompt, so a
long prompt delays the others by one chunk at a time, never by its whole length. Lower priorities
run only when no higher one has work, except for a small guaranteed share, so that the judge
neither slows live requests nor starves.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from openclaw_rl.engine.job import Job
from openclaw_rl.engine.kv import CachePool, may_share
from openclaw_rl.engine.lora import Adapter
from openclaw_rl.engine.model import Chunk, Network
from openclaw_rl.engine.sampling import Sampled, Sampler, draw_whole, raw_logprobs
from openclaw_rl.engine.threads import ThreadTuner
from openclaw_rl.errors import GrammarFailed
from openclaw_rl.types import Priority, Scores, Token

if TYPE_CHECKING:
    from openclaw_rl.engine.gpu_sampler import Drawn, GpuSampler

#: One step in this many includes lower priorities even under constant live load: rare enough not to affect
#: 95 % of the gaps between a stream's tokens.
_LOW_PRIORITY_SHARE = 32
#: Conversations whose history is recomputed for a new version, most recent first.
_WARM_CACHES = 16
_SMALLEST_CHUNK = 16
_OWNERS = 10_000
_Reason = Literal["stop", "length"] | None


class Scheduler:
    """Owns the queue and the caches; ``step()`` is one forward pass. Single-threaded."""

    def __init__(
        self,
        decoder: Network,
        pool: CachePool,
        *,
        max_running: int,
        chunk_tokens: int,
        idle_chunk_tokens: int,
        max_step_s: float,
        tuner: ThreadTuner,
        gpu_sampler: GpuSampler | None = None,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        """With ``gpu_sampler``, tokens are emitted while the GPU runs the next step, and ``flush`` called."""
        self.decoder, self.pool = decoder, pool
        self.max_running = max_running
        self.chunk_tokens, self.idle_chunk_tokens = chunk_tokens, idle_chunk_tokens
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.max_step_s, self.tuner = max_step_s, tuner
        self._gpu_sampler, self._flush = gpu_sampler, flush
        self._unsent: list[tuple[Job, Drawn, _Reason]] = []
        self._chunk = chunk_tokens
        self._steps = 0
        self._num_admitted = 0
        self._admitted: dict[str | None, int] = {}

    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, job: Job) -> None:
        self.waiting.append(job)

    def warm(self, before: int, version: int, adapter: Adapter | None, decoder: Network | None) -> None:
        """Prefill the previous version's recent conversations, so that the new version can continue them."""
        for cache in self.pool.recent(before, _WARM_CACHES):
            ids = cache.ids.tolist()
            if len(ids) > 2:
                self.add(
                    Job(
                        ids=ids[:-1],
                        version=version,
                        adapter=adapter,
                        decoder=decoder,
                        priority=Priority.JUDGE,
                        max_length=len(ids),
                        emit=lambda scores: None,
                        reader=cache.of,
                        targets=ids[1:],
                        score_start=len(ids) - 2,
                    )
                )

    def step(self) -> None:
        self._drop_cancelled()
        self._admit()
        batch = self._plan()
        if not batch:
            return
        if any(count > 1 for _, count in batch):
            self._send()  # prompts take long to launch
        self._steps += 1
        chunks = [
            Chunk(
                job.ids[cached : cached + count],
                job.cache,
                job.adapter,
                self._num_logits(job, count),
                job.hidden_layer,
            )
            for job, count in batch
            if job.cache is not None and (cached := job.cache.length) >= 0
        ]
        started = time.monotonic()
        self.tuner.before(len(batch))
        logits_RV = self._forward(batch, chunks)
        elapsed_s = time.monotonic() - started
        if all(count == 1 for _, count in batch):
            self.tuner.after(len(batch), elapsed_s)
        else:
            self._adapt_chunk(batch, elapsed_s)
        for (job, _), chunk in zip(batch, chunks, strict=True):
            job.hidden = chunk.hidden
        self._deliver(batch, [chunk.num_logits for chunk in chunks], logits_RV)
        if not self.running:
            self._send()

    def _forward(self, batch: Sequence[tuple[Job, int]], chunks: Sequence[Chunk]) -> torch.Tensor:
        """One pass for the base and all its adapters; one more per version with full weights."""
        parts = []
        for decoder, group in groupby(zip(batch, chunks, strict=True), key=lambda entry: entry[0][0].decoder):
            parts.append((decoder or self.decoder).forward([chunk for _, chunk in group]))
        nonempty = [part for part in parts if part.shape[0]]
        return torch.cat(nonempty) if len(nonempty) > 1 else (nonempty or parts)[0]

    # --- admission ---------------------------------------------------------------------------

    def _drop_cancelled(self) -> None:
        self.waiting = deque(job for job in self.waiting if not job.cancelled)
        for job in [job for job in self.running if job.cancelled]:
            self._finish(job)

    def _admit(self) -> None:
        for job in sorted(self.waiting, key=self._turn()):
            if not self._has_place(job.priority):
                continue
            if not self.pool.fits(job.max_length):
                return
            ids = np.asarray(job.ids)
            if self._should_wait_for_prefix(job, ids):
                continue
            self.waiting.remove(job)
            try:
                job.cache = self.pool.acquire(
                    ids, job.reusable_prefix, job.version, job.max_length, time.monotonic(), job.reader
                )
            except Exception as error:
                # Most likely out of memory: fails this request only.
                job.emit(RuntimeError(f"no memory for the request could be had: {error}"))
                continue
            self.running.append(job)
            self._num_admitted += 1
            self._admitted[job.reader.owner] = self._num_admitted

    def _turn(self) -> Callable[[Job], tuple[int, int, int]]:
        """Sort key: priority, then the owner with the fewest running jobs, then the one admitted least
        recently, so that one user's queue does not delay everybody."""
        running = Counter(job.reader.owner for job in self.running)
        if len(self._admitted) > _OWNERS:
            self._admitted.clear()
        return lambda job: (
            job.priority,
            running[job.reader.owner],
            self._admitted.get(job.reader.owner, 0),
        )

    def _has_place(self, priority: Priority) -> bool:
        """Live requests never wait for learning, which has places of its own: half as many beside them."""
        live = sum(job.priority == Priority.LIVE for job in self.running)
        if priority == Priority.LIVE:
            return live < self.max_running
        return len(self.running) - live < max(1, self.max_running // 2 if live else self.max_running)

    def _should_wait_for_prefix(self, job: Job, ids: np.ndarray) -> bool:
        """Whether a running prompt shares more than any cache holds: it should finish, then be copied."""
        known = self.pool.best_prefix(ids, job.version, job.reader)[1]
        for other in self.running:
            if other.version != job.version or other.num_pending <= 1 or other.priority > job.priority:
                continue
            prompt = np.asarray(other.ids[: len(ids)])
            differs = np.flatnonzero(prompt != ids[: len(prompt)])
            common = int(differs[0]) if len(differs) else len(prompt)
            shared = min(common, job.reusable_prefix, may_share(job.reader, other.reader))
            if shared > known + self.chunk_tokens or (shared == job.reusable_prefix and shared > known):
                return True
        return False

    # --- planning ----------------------------------------------------------------------------

    def _plan(self) -> list[tuple[Job, int]]:
        if not self.running:
            return []
        first = min(job.priority for job in self.running)
        everyone = self._steps % _LOW_PRIORITY_SHARE == 0
        ready = [job for job in self.running if everyone or job.priority == first]
        decoding = [job for job in ready if job.num_pending == 1]
        batch = [(job, 1) for job in decoding]
        prefilling = [job for job in ready if job.num_pending > 1]
        if prefilling:
            # One prompt at a time: what is scored must not depend on what else happens to wait.
            job = min(prefilling, key=lambda job: job.priority)
            budget = self._chunk if decoding or job.priority > Priority.LIVE else self.idle_chunk_tokens
            batch.append((job, min(budget, job.num_pending)))
        return sorted(batch, key=lambda entry: entry[0].version)

    def _adapt_chunk(self, batch: Sequence[tuple[Job, int]], elapsed_s: float) -> None:
        """Shrink prompt chunks when one delays other sequences for too long, and grow them back."""
        if len(batch) == 1:
            return
        if elapsed_s > self.max_step_s:
            self._chunk = max(_SMALLEST_CHUNK, int(self._chunk * self.max_step_s / elapsed_s))
        elif elapsed_s < 0.6 * self.max_step_s:
            self._chunk = min(self.chunk_tokens, self._chunk * 5 // 4)

    def _num_logits(self, job: Job, count: int) -> int:
        assert job.cache is not None
        end = job.cache.length + count
        if job.sampler:
            return 1 if end == len(job.ids) else 0
        return max(0, min(count, end - job.score_start))

    # --- results -----------------------------------------------------------------------------

    def _deliver(
        self, batch: Sequence[tuple[Job, int]], counts: Sequence[int], logits_RV: torch.Tensor
    ) -> None:
        owners = [job for (job, _), count in zip(batch, counts, strict=True) for _ in range(count)]
        simple = [row for row, job in enumerate(owners) if self._gpu_sampler and _is_simple(job)]
        if simple:
            self._draw_on_gpu([owners[row] for row in simple], _rows(logits_RV, simple))
        self._send()
        if simple:
            self._take_drawn([owners[row] for row in simple])
        if len(simple) < len(owners):
            drawn = set(simple)
            rest = [row for row in range(len(owners)) if row not in drawn]
            entries = [
                (job, count)
                for (job, _), count in zip(batch, counts, strict=True)
                if count and not (self._gpu_sampler and _is_simple(job))
            ]
            self._deliver_rest(entries, _rows(logits_RV, rest))
        self._finish_scored(batch)

    def _draw_on_gpu(self, jobs: Sequence[Job], logits_RV: torch.Tensor) -> None:
        assert self._gpu_sampler is not None
        samplers = [job.sampler for job in jobs if job.sampler]
        self._gpu_sampler.start(logits_RV, samplers, max(1, *(job.top_k for job in jobs)))

    def _take_drawn(self, jobs: Sequence[Job]) -> None:
        assert self._gpu_sampler is not None
        for job, drawn in zip(jobs, self._gpu_sampler.finish(), strict=True):
            self._unsent.append((job, drawn, self._append(job, drawn.id)))

    def _send(self) -> None:
        """Emit the tokens of the last step that was sampled on the GPU."""
        if not self._unsent:
            return
        unsent, self._unsent = self._unsent, []
        for job, drawn, reason in unsent:
            ids, logprobs = tuple(drawn.top_ids[: job.top_k]), tuple(drawn.top_logprobs[: job.top_k])
            numbers = drawn.id, drawn.logprob, drawn.sampled_logprob
            job.emit(Token(*numbers, ids, logprobs, job.version, False, reason))
        self._flush()

    def _deliver_rest(self, entries: Sequence[tuple[Job, int]], logits_RV: torch.Tensor) -> None:
        top_k = max(1, *(job.top_k for job, _ in entries))
        raw_RV, ids_RK, logprobs_RK = raw_logprobs(logits_RV, top_k)
        drawn = draw_whole(raw_RV, [_whole_sampler(job) for job, count in entries for _ in range(count)])
        top_ids, top_logprobs = ids_RK.tolist(), logprobs_RK.tolist()
        end = 0
        for job, count in entries:
            rows = slice(end, end + count)
            row, end = end, end + count
            if job.sampler:
                tops = top_ids[row][: job.top_k], top_logprobs[row][: job.top_k]
                try:
                    if one := drawn[row]:
                        self._go_on(job, Sampled(*one, tuple(tops[0]), tuple(tops[1]), forced=False))
                    else:
                        self._sample(job, raw_RV[row].cpu(), *tops)
                except Exception as error:
                    # One request's grammar or parameters must not fail the others.
                    known = isinstance(error, GrammarFailed)
                    failed = error if known else RuntimeError(f"sampling failed: {error}")
                    job.emit(failed)
                    self._finish(job)
            else:
                self._keep_scores(job, count, raw_RV[rows], ids_RK[rows], logprobs_RK[rows])

    def _sample(
        self,
        job: Job,
        raw_V: torch.Tensor,
        top_ids: list[int],
        top_logprobs: list[float],
    ) -> None:
        assert job.sampler is not None
        allowed_V = job.grammar.allowed(job.max_length - len(job.ids)) if job.grammar else None
        self._go_on(job, job.sampler.sample(raw_V, top_ids, top_logprobs, allowed_V))

    def _go_on(self, job: Job, sampled: Sampled) -> None:
        assert job.request is not None
        if job.grammar and sampled.id not in job.request.stop_ids:
            job.grammar.consume(sampled.id)
        reason = self._append(job, sampled.id)
        job.emit(
            Token(
                sampled.id,
                sampled.logprob,
                sampled.sampled_logprob,
                sampled.top_ids,
                sampled.top_logprobs,
                job.version,
                sampled.forced,
                reason,
            )
        )

    def _append(self, job: Job, token_id: int) -> _Reason:
        """Continue the sequence; returns why it ends here, if it does."""
        assert job.request is not None
        job.ids.append(token_id)
        reason: _Reason = None
        if token_id in job.request.stop_ids:
            reason = "stop"
        elif len(job.ids) >= job.max_length:
            reason = "length"
        if reason:
            self._finish(job)
        return reason

    def _keep_scores(
        self, job: Job, count: int, raw_RV: torch.Tensor, ids_RK: torch.Tensor, logprobs_RK: torch.Tensor
    ) -> None:
        assert job.cache is not None
        end = job.cache.length
        targets = torch.tensor(job.targets[end - count : end])
        k = job.top_k
        ids_RC = targets.unsqueeze(1)
        if job.candidates_NK is not None:
            first = end - count - job.score_start
            ids_RC = torch.cat([ids_RC, job.candidates_NK[first : first + count]], dim=1)
        job.scored.append((raw_RV.gather(1, ids_RC.to(raw_RV.device)), ids_RK[:, :k], logprobs_RK[:, :k]))

    def _finish_scored(self, batch: Sequence[tuple[Job, int]]) -> None:
        for job, _ in batch:
            if job.sampler is None and job.num_pending == 0 and job in self.running:
                values = [row for part in job.scored for row in part[0].tolist()]
                assert len(values) == len(job.targets) - job.score_start
                job.emit(
                    Scores(
                        [row[0] for row in values],
                        [row for part in job.scored for row in part[1].tolist()],
                        [row for part in job.scored for row in part[2].tolist()],
                        None if job.hidden is None else job.hidden.tolist(),
                        None if job.candidates_NK is None else [row[1:] for row in values],
                    )
                )
                self._finish(job)

    def _finish(self, job: Job) -> None:
        self.running.remove(job)
        if job.cache is not None:
            self.pool.release(job.cache, time.monotonic())

    def fail(self, error: Exception) -> None:
        """After a failed pass: report the error to all running jobs and empty their caches."""
        self._send()
        for job in list(self.running):
            job.emit(error)
            if job.cache is not None:
                job.cache.truncate(0)
            self._finish(job)


def _whole_sampler(job: Job) -> Sampler | None:
    return job.sampler if job.sampler and job.sampler.is_whole and not job.grammar else None


def _is_simple(job: Job) -> bool:
    return job.sampler is not None and job.sampler.is_simple and not job.grammar


def _rows(logits_RV: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    return logits_RV if len(rows) == logits_RV.shape[0] else logits_RV[rows]
