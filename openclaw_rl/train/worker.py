"""Background learning: verdicts → samples → step → gate → publish, and rollback if users dislike the result.

All state between steps is in the ledger or in a version's folder, so the process can be killed at any
instruction: a claimed step is repeated from the same weights with the same samples, a saved one continues
with the gate, and one that passed is already published.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TypeVar

from openclaw_rl.config import LearnConfig
from openclaw_rl.train.disk import Disk
from openclaw_rl.train.gate import Gate, GateResult
from openclaw_rl.train.lessons import OTHER_MODEL, SampleMaker
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.train.publish import follow
from openclaw_rl.train.queues import PolicyQueue, WishLimits
from openclaw_rl.train.rebuild import NEW_OPTIMIZER, Rebuild
from openclaw_rl.train.recipes import Recipes
from openclaw_rl.train.rollback import Rollback
from openclaw_rl.train.steps import TrainingSet, find_factors, take_steps
from openclaw_rl.types import (
    BASE_VERSION,
    EVERYONE,
    Algorithm,
    Engine,
    Example,
    Json,
    Policy,
    Scope,
    StepReport,
    Trainer,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
_GATE_TURNS = 8
#: Most batches of samples that one step takes, if the samples carry little signal or the backlog is long.
_MOST_BATCHES = 4
#: A step needs this many samples, however long the oldest has waited.
_MIN_SAMPLES = 2
PRUNED = "its turn was pruned before the step"
#: A step is given up after this many failures.
_MOST_TRIES = 3
WISH_OVER = "what it was to teach is no longer wished for, or was given up"
STALE = "it was answered by a version too long ago"


@dataclass(frozen=True, slots=True)
class LearnOptions:
    settings: LearnConfig
    """The settings that apply to the scope."""
    batch_size: int
    """Samples per step: from the settings, or the algorithm's choice."""
    replay: int
    """Earlier accepted replies that a step replays, of any age; clipping the ratio bounds their effect."""
    config_hash: str
    fingerprint: str
    """Fingerprint of the model being trained."""


@dataclass(frozen=True, slots=True)
class Method:
    """How a scope learns."""

    algorithm: Algorithm
    options: LearnOptions


class LearnWorker:
    def __init__(
        self,
        policies: PolicyQueue,
        wishes: WishLimits,
        sampler: SampleMaker,
        method_for: Callable[[Scope], Method],
        make_trainer: Callable[[], Trainer],
        gate: Gate,
        engine: Engine,
        store: PolicyStore,
        progress: Callable[[str], None] = lambda line: None,
        poll_s: float = 0.5,
        log_step: Callable[[int, Json, Json], None] = lambda version, metrics, gate: None,
    ) -> None:
        """``log_step`` is called for every version that was checked, with its number, metrics and checks."""
        self._policies, self._wishes, self._sampler = policies, wishes, sampler
        self._method_for, self._gate = method_for, gate
        self._make_trainer, self._engine, self._store = make_trainer, engine, store
        self._options = options = method_for(EVERYONE).options
        self._progress, self._poll_s, self._log_step = progress, poll_s, log_step
        self._rollback = Rollback(policies, wishes, store, options.fingerprint, self._say)
        self._disk = Disk(policies, store, options.settings)
        # One thread for all arithmetic: each further one would get OpenMP workers of its own.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trainer")
        self._trainer: Trainer | None = None
        self._trainer_version: int | None = None
        """The version whose weights the trainer holds."""
        self._reported: dict[Scope, int] = {}
        self._last_scope, self._started = "", False
        self._seen: object = None  # how far the ledger was searched for scopes with work to do
        self._recipes = Recipes(
            policies, wishes, sampler, lambda scope: method_for(scope).algorithm, gate.everywhere
        )
        self._rebuild = Rebuild(policies, store, self._recipes, self._in_thread, self._say)

    def _say(self, line: str) -> None:
        self._progress(line)

    async def run(self) -> None:
        """Run until cancelled. Waits while the engine or the database is unavailable."""
        while True:
            try:
                await self._start()
                worked = await self.step()
            except asyncio.CancelledError:
                raise
            except ConnectionError as error:
                log.warning("learning waits for the engine: %s", error)
                worked = False
            except Exception as error:
                log.exception("the learning step failed; trying again")
                self._progress(f"the step failed and will be tried again: {str(error).partition(chr(10))[0]}")
                self._trainer_version = None
                worked = False
                await asyncio.sleep(10 * self._poll_s)
            if not worked:
                await asyncio.sleep(self._poll_s)

    async def _start(self) -> None:
        """Once: relearn on this model the wishes that were learned on another."""
        if not self._started and (number := await self._sampler.relearn()):
            self._progress(f"the model is another one: {number} wishes are learned again")
        self._started = True

    async def step(self) -> bool:
        """Do the next piece of work; False if there is none."""
        if (unfinished := self._policies.unfinished()) is not None:
            await self._finish(unfinished)
            return True
        worked = await self._sampler.run() > 0
        scopes, self._seen = await asyncio.to_thread(self._policies.changed_scopes, self._seen)
        for scope in scopes:
            if await asyncio.to_thread(self._rollback.look, scope):
                await self._follow()
        policy = await asyncio.to_thread(self._claim, scopes)
        if policy is None:
            await asyncio.to_thread(self._disk.free_idle)
            return worked
        await self._finish(policy)
        return True

    # --- when --------------------------------------------------------------------------------

    def _claim(self, scopes: Sequence[Scope]) -> Policy | None:
        """The next step that is due; scopes take turns."""
        asked, after = self._policies.flush_requested_at(), self._last_scope
        for scope in [*(s for s in scopes if s > after), *(s for s in scopes if s <= after)]:
            own = self._policies.flush_requested_at(scope)
            if (policy := self._claim_for(scope, flush=bool(asked or own))) is not None:
                self._last_scope = scope
                return policy
            if own and not self._policies.waiting(scope)[0] and self._policies.is_settled():
                self._policies.flushed(own, scope)
        waits = any(self._policies.waiting(scope)[0] for scope in scopes)
        if asked and not waits and self._policies.is_settled():
            self._policies.flushed(asked)
        return None

    def _claim_for(self, scope: Scope, flush: bool) -> Policy | None:
        method = self._method_for(scope)
        options, settings = method.options, method.options.settings
        number, strength, oldest = self._policies.waiting(scope)
        size = self._policies.full_batch(options.batch_size, scope)
        if number != self._reported.get(scope):
            self._reported[scope] = number
            if 0 < number < size:
                whose = "" if scope == EVERYONE else f" of {scope}"
                self._progress(f"{number} of the {size} replies{whose} that a new version needs")
        old = (
            oldest is not None and time.time() - oldest > settings.batch_max_age_s and number >= _MIN_SAMPLES
        )
        if not number or not (flush or old or is_due(number, strength, size, settings.min_signal)):
            return None
        limit = size
        says_little = number >= 2 * size and strength < settings.min_signal * number
        if says_little or number > (settings.max_staleness + 1) * size:  # the last would become stale
            limit = min(number, _MOST_BATCHES * size)
        if method.algorithm.needs.generates:  # a step takes as long for one complaint as for several
            limit = min(number, _MOST_BATCHES * max(size, _MOST_BATCHES))
        parent = self._rollback.trainable(scope)
        return self._policies.claim(limit, parent, options.config_hash, options.replay, scope)

    async def _follow(self) -> None:
        """At once, rather than at the server's next poll; skipped while the server is unavailable."""
        with suppress(ConnectionError, ValueError, OSError):
            await follow(self._policies, self._engine, self._store.weights)

    # --- one version, from its samples to its outcome ------------------------------------------------

    async def _finish(self, policy: Policy) -> None:
        """A failed step is retried; one that keeps failing is given up, and learning goes on."""
        try:
            await self._bring_to_end(policy)
        except Exception as error:
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise  # the engine is unavailable, the disk is full: not the step's fault
            self._trainer_version = None
            problem = str(error).partition("\n")[0] or type(error).__name__
            if self._policies.failed(policy.version, problem) < _MOST_TRIES:
                raise
            log.exception("step %d failed %d times and is given up", policy.version, _MOST_TRIES)
            self._give_up(policy, f"its step failed {_MOST_TRIES} times: {problem}")

    def _give_up(self, policy: Policy, why: str) -> None:
        self._policies.reject(policy.version, {"passed": False, "reason": why, "checks": []}, why)
        self._progress(f"version {policy.version} was given up: {why}")

    async def _bring_to_end(self, policy: Policy) -> None:
        if policy.status == "training":
            if not self._store.exists(policy.version) and not await self._train(policy):
                return
            manifest = self._store.manifest(policy.version)
            began = {NEW_OPTIMIZER: True} if manifest.get(NEW_OPTIMIZER) else {}
            self._policies.trained(policy.version, {**manifest["metrics"], **began})
        started, result = time.monotonic(), None
        if not self._is_undone(policy):
            result = await self._check(policy)
        if result is None or self._is_undone(policy):
            return await self._discard(policy, None)
        seconds = time.monotonic() - started
        self._progress(f"version {policy.version} is checked: {len(result.checks)} checks in {seconds:.1f} s")
        self._store.update_manifest(policy.version, gate=result.to_json())
        self._log_step(policy.version, self._store.manifest(policy.version)["metrics"], result.to_json())
        complaints = self._policies.claimed(policy.version)
        self._wishes.count_version(complaints, passed=result.passed, version=policy.version)
        if not result.passed:
            await self._discard(policy, result.to_json())
        elif self._policies.publish(policy.version, result.to_json()):
            await self._follow()
            self._progress(f"version {policy.version} passed its checks and answers from now on")
            self._disk.free(policy.scope)
        else:
            await self._discard(policy, None)

    async def _train(self, policy: Policy) -> bool:
        """False if there was nothing left to train."""
        version, items = policy.version, await self._still_wished(policy, self._usable(policy))
        if not items:
            self._policies.reject(
                version, {"passed": False, "reason": "none of its samples could be used", "checks": []}
            )
            return False
        training_set = await self._recipes.training_set(policy, items)
        parent = policy.parent or BASE_VERSION
        if self._trainer_version != parent and await self._rebuild.state_of(
            parent, policy.scope, self._get_trainer
        ):
            self._trainer_version = None
        self._progress(f"training version {version} on {len(items)} examples")
        report = await self._in_thread(lambda: self._take_step(policy, training_set))
        self._progress(
            f"version {version} is trained: {report.num_tokens} tokens in {report.total_s:.1f} s, "
            f"loss {report.loss:.4f}, gradient {report.grad_norm:.2f}"
        )
        return True

    def _usable(self, policy: Policy) -> list[Example]:
        version, parent = policy.version, policy.parent or BASE_VERSION
        self._policies.take_out_excluded(version)
        self._policies.drop(version, self._policies.foreign(version), OTHER_MODEL)
        items = self._policies.items(version)
        found = {item.source.turn_ids[0] for item in items}
        self._policies.drop(version, [i for i in self._policies.claimed(version) if i not in found], PRUNED)
        stale = [i.source.turn_ids[0] for i in items if self._is_stale(i, parent, policy.scope)]
        self._policies.drop(version, stale, STALE)
        return [item for item in items if item.source.turn_ids[0] not in stale]

    async def _still_wished(self, policy: Policy, items: list[Example]) -> list[Example]:
        """Those that teach what is wished for now.

        If nothing else here teaches what is left of somebody's wishes, their newest complaint about it is
        taught again.
        """
        over = {i.source.turn_ids[0]: i.source.user for i in items if self._is_over(i, policy.scope)}
        left = [item for item in items if item.source.turn_ids[0] not in over]
        taught = {item.source.user for item in left if item.source.kind == "hinted"}
        for turn_id, user in reversed(over.items()):
            if user not in taught and self._wishes.holds(turn_id):
                await self._sampler.teach_again(turn_id)
                taught.add(user)
        self._policies.drop(policy.version, list(over), WISH_OVER)
        return left

    def _is_over(self, example: Example, scope: Scope) -> bool:
        """Whether it teaches wishes that are no longer the user's current ones."""
        source = example.source
        return source.kind == "hinted" and source.hint != self._wishes.current(source.user, scope)

    def _is_stale(self, example: Example, parent: int, scope: Scope) -> bool:
        answered_by = example.source.policy_version
        if answered_by is None:
            return False
        answering = self._policies.policy(answered_by)
        if answering is not None and answering.gate.get("undone"):
            return False  # it is learned again, and was not stale when it was learned first
        most = self._method_for(scope).options.settings.max_staleness
        return self._policies.num_between(answered_by, parent, scope) > most

    def _get_trainer(self) -> Trainer:
        if self._trainer is None:
            self._trainer = self._make_trainer()
        return self._trainer

    def _take_step(self, policy: Policy, training_set: TrainingSet) -> StepReport:
        """Runs in the trainer's thread."""
        version, parent, items = policy.version, policy.parent or BASE_VERSION, training_set.new
        algorithm, trainer = self._method_for(policy.scope).algorithm, self._get_trainer()
        is_new = False
        if self._trainer_version != parent:
            is_new = parent != BASE_VERSION and not self._store.has_state(parent)
            try:
                trainer.resume(self._store.weights(parent) if parent != BASE_VERSION else None)
            except ValueError:
                self._policies.release(version)
                raise
            self._trainer_version = parent
        state = trainer.state
        self._trainer_version = None  # neither parent nor version, if an exception follows
        result = take_steps(trainer, algorithm, training_set, state, self._recipes.seed(policy), parent)
        report = result.report
        manifest: Json = {
            "version": version,
            "parent": parent,
            "scope": policy.scope,
            "samples": [item.source.turn_ids[0] for item in items],
            "replayed": [item.source.turn_ids[0] for item in training_set.replayed],
            "factors": {} if algorithm.needs.step_examples else find_factors(items, result.batch.examples),
            "config_hash": self._options.config_hash,
            "fingerprint": self._options.fingerprint,
            "metrics": {**asdict(report), "scale": result.scale},
            "created_at": time.time(),
        } | ({NEW_OPTIMIZER: True} if is_new else {})
        if algorithm.needs.generates:
            prompts = [self._policies.system_prompt(turn_id) for turn_id in manifest["samples"]]
            manifest["roles"] = self._store.roles_after(parent, prompts)
        self._store.write(version, lambda folder: trainer.save(folder, state), manifest)
        self._trainer_version = version
        return report

    async def _check(self, policy: Policy) -> GateResult:
        version, parent = policy.version, policy.parent or BASE_VERSION
        metrics = self._store.manifest(version)["metrics"]
        report = StepReport(**{name: value for name, value in metrics.items() if name != "scale"})
        if report.finite:
            for needed in (parent, version):
                if needed != BASE_VERSION:
                    await self._engine.load(self._store.weights(needed))
        held_out = self._policies.held_out(_GATE_TURNS, policy.scope)
        subjects = self._sampler.subjects(self._policies.users_of(version), policy.scope, version)
        return await self._gate.check(version, parent, report, held_out, subjects, policy.scope)

    async def _discard(self, policy: Policy, gate: Json | None) -> None:
        if gate is not None:
            self._policies.reject(policy.version, gate)
            self._progress(f"version {policy.version} was rejected: {gate['reason']}")
        else:
            self._progress(f"version {policy.version} was dropped: another version was chosen meanwhile")
        if self._is_undone(policy):  # what it learned was erased during training
            self._store.forget(policy.version, only_state=False)
        self._trainer_version = None
        with suppress(ConnectionError, ValueError):
            await self._engine.unload(policy.version)

    def _is_undone(self, policy: Policy) -> bool:
        now = self._policies.policy(policy.version)
        return now is None or bool(now.gate.get("undone"))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def is_due(number: int, strength: float, batch_size: int, min_signal: float) -> bool:
    """Whether there are enough samples with enough signal, or very many with little."""
    return number >= batch_size and (strength >= min_signal * number or number >= _MOST_BATCHES * batch_size)
