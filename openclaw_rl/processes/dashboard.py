"""What users may view and decide in the dashboard, from the ledgers, the engine and the versions on disk."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw_rl.capture import events
from openclaw_rl.capture.inspect import (
    view_learning,
    view_policies,
    view_policy,
    view_session,
    view_sessions,
    view_turn,
)
from openclaw_rl.capture.learned import (
    SwapWatch,
    view_rewards,
    view_step_turns,
    view_swaps,
    view_traffic,
)
from openclaw_rl.capture.own_counts import count_sessions
from openclaw_rl.capture.rollouts import view_attempts
from openclaw_rl.capture.satisfaction import Rated, rated_sessions, session_scores, view_first_replies
from openclaw_rl.capture.search import SearchIndex
from openclaw_rl.capture.takeovers import TakeOvers
from openclaw_rl.capture.texts import added, plain_text, turn_texts
from openclaw_rl.capture.unjudged import COUNTERS
from openclaw_rl.capture.wish_view import view_wishes
from openclaw_rl.capture.wishes import count_wishes
from openclaw_rl.config import to_environment
from openclaw_rl.processes import health
from openclaw_rl.processes.environments import list_environments, read_replay
from openclaw_rl.processes.forgetting import Forgetting
from openclaw_rl.processes.headline import headline
from openclaw_rl.processes.token_pushes import push_of, taught_answers
from openclaw_rl.serve.compare import Comparer
from openclaw_rl.serve.pulse import Pulse
from openclaw_rl.text import well_formed
from openclaw_rl.types import EVERYONE, Json, Message, Scope, TurnRecord

log = logging.getLogger(__name__)
_MAX_FOUND = 1000
_MAX_RESULT_BYTES = 2_000_000
_INDEX_S = 1.0
_EXPORT_S = 900.0
#: Versions that may be loaded for comparisons, besides the serving one.
_MAX_LOADED = 8

if TYPE_CHECKING:
    from openclaw_rl.processes.serving_system import ServingSystem


class Dashboard:
    """The Inspection protocol over a running system."""

    def __init__(self, system: ServingSystem) -> None:
        self._system, self._config, self._ledgers = system, system.config, system.ledgers
        self._store, self._engine, self._renderer = system.store, system.engine, system.gateway.renderer
        self._search = SearchIndex(self._config.home / "search.db", self._ledgers.serve)
        self._swaps: dict[Scope, SwapWatch] = {}
        self._exporting = asyncio.Lock()
        self._pulses: dict[tuple[Scope, str | None], Pulse] = {}
        self.learned = self._config.home / "learn.prom"
        renderer = self._renderer
        self.comparer = None if renderer is None else Comparer(self._engine, renderer, self._load)
        self.used_at: dict[int, float] = {}
        """When a version was last requested by number, on the monotonic clock."""

    # --- views -------------------------------------------------------------------------------

    def sessions(
        self, limit: int, after: str | None, user: str | None, query: str | None, rated: Rated | None = None
    ) -> Json:
        only = self._search.find(query, user, _MAX_FOUND) if query and query.strip() else None
        if rated is not None:
            matching = rated_sessions(self._ledgers, rated, user)
            only = matching if only is None else [name for name in only if name in set(matching)]
        page = view_sessions(self._ledgers.serve, limit, after, user, only)
        scores = session_scores(self._ledgers, [session["id"] for session in page["data"]])
        return {**page, "data": [{**one, "scores": scores.get(one["id"], [])} for one in page["data"]]}

    def session(
        self, session_id: str, user: str | None, limit: int | None, after: str | None, text: bool
    ) -> Json | None:
        return view_session(self._ledgers, session_id, user, limit, after, text)

    def turn(self, turn_id: str, user: str | None) -> Json | None:
        return view_turn(self._ledgers, turn_id, user)

    def status(self, scope: Scope = EVERYONE, user: str | None = None) -> Json:
        return health.status(self._system, scope, user)

    def pulse_of(self, scope: Scope, user: str | None) -> Pulse:
        if (scope, user) not in self._pulses:
            self._pulses[scope, user] = Pulse(partial(self.status, scope, user))
        return self._pulses[scope, user]

    def readiness(self) -> tuple[bool, Json]:
        return health.readiness(self._system)

    def gauges(self) -> dict[str, float]:
        return health.gauges(self._system)

    def now(self, scope: Scope = EVERYONE, user: str | None = None) -> Json:
        """The part of ``/v1/status`` about the last minute, the last swap and the wishes."""
        now = time.time()
        return {
            "traffic": view_traffic(self._ledgers.serve, now, user),
            "last_swap": self._last_swap(scope, now),
            "wishes": count_wishes(self._ledgers.learn, user),
        }

    def _last_swap(self, scope: Scope, now: float) -> Json | None:
        if scope not in self._swaps:
            self._swaps[scope] = SwapWatch(self._ledgers.serve, self._ledgers.policies, scope)
        return self._swaps[scope].last(now)

    def learning(self, user: str | None, scope: Scope = EVERYONE) -> Json:
        first = view_first_replies(self._ledgers, user)
        return {
            "headline": self._headline(user, scope, first),
            "rewards": view_rewards(self._ledgers.policies, user),
            "swaps": view_swaps(self._ledgers.policies, scope=scope),
            "first_replies": first,
        }

    def _headline(self, user: str | None, scope: Scope, first: Json) -> str:
        return headline(
            view_wishes(self._ledgers, user, self._config.serve.notes),
            first,
            serving=self._engine.status().version_for(scope),
            stage=view_learning(self._ledgers.policies, scope, everybodys=False)["stage"],
            is_running=self._system.learning is None or self._system.learning.running,
        )

    def environments(self, scope: Scope | None) -> list[Json]:
        return list_environments(self._config.home, self._ledgers.policies, scope)

    def attempts(self, scope: Scope, limit: int, before: float | None) -> list[Json]:
        return view_attempts(self._ledgers, scope, limit, before)

    def replay(self, name: str, session_id: str, user: str | None) -> Json | None:
        session = self._ledgers.serve.session(session_id)
        if session is None or user not in (None, session["user"]):
            return None
        return read_replay(self._config.home, name, session_id)

    def wishes(self, user: str | None) -> Json:
        return {"object": "list", "data": view_wishes(self._ledgers, user, self._config.serve.notes)}

    def change_wish(self, wish_id: str, user: str | None, **changes: Any) -> bool:
        return Forgetting(self._config.home, self._ledgers, self._store).change_wish(wish_id, user, **changes)

    def take_over(self, scope: Scope = EVERYONE) -> Json | None:
        return TakeOvers(self._ledgers.learn).view(scope) if self._config.serve.take_over else None

    def waves(self) -> list[Json]:
        return self._ledgers.policies.list_waves()

    def decide_wave(self, wave_id: int, learn: bool) -> Json | None:
        return self._ledgers.policies.decide_wave(wave_id, learn)

    def count_sessions(self) -> dict[str, int]:
        return count_sessions(self._ledgers)

    def policies(self, scope: Scope | None = EVERYONE) -> Json:
        return view_policies(self._ledgers.policies, self._engine.status().version_for, scope)

    def parent(self, scope: Scope = EVERYONE) -> int | None:
        policies = self._ledgers.policies
        policy = policies.policy(policies.serving(scope))
        return None if policy is None else policy.parent

    def policy(self, version: int, user: str | None) -> Json | None:
        policy = self._ledgers.policies.policy(version)
        if policy is None:
            return None
        turns = view_step_turns(self._ledgers.policies, version, user)
        return {**view_policy(policy), "has_weights": self._store.has_weights(version), "turns": turns}

    def tokens(self, turn_id: str, user: str | None) -> Json | None:
        """A turn in detail: the new input, and each token of the reply with its training signal."""
        view = view_turn(self._ledgers, turn_id, user)
        turn = None if view is None else self._ledgers.serve.load_turn(turn_id)
        if view is None or turn is None:
            return None
        own = [token.id for token in turn.tokens]
        made = self._ledgers.policies.examples_of(turn_id)
        sample = next((example for example in made if example.reply_ids == own), None)
        factor = self._factor(view["step"], turn_id)
        return {
            **view,
            "input": added(turn.messages),
            "reply": well_formed(turn.reply),
            "hint": next((example.source.hint for example in made), None),
            "taught": taught_answers([one for one in made if one is not sample], self._renderer)
            if self._renderer
            else [],
            "strength": sample.strength if sample else None,
            "tokens": [
                {**token, **push_of(sample, index, factor, self._text)}
                for index, token in enumerate(self._pieces(turn))
            ],
        }

    def _pieces(self, turn: TurnRecord) -> list[Json]:
        if self._renderer is None:
            return []
        detokenizer = self._renderer.detokenizer()
        pieces: list[Json] = [
            {"text": detokenizer.feed(t.id), "logprob": t.logprob, "forced": t.forced} for t in turn.tokens
        ]
        if pieces:
            pieces[-1]["text"] += detokenizer.finish()
        return pieces

    def _text(self, token_id: int) -> str:
        return self._renderer.token_bytes(token_id).decode("utf-8", "replace") if self._renderer else ""

    def _factor(self, step: int | None, turn_id: str) -> float:
        """The factor that the step applied to the whole sample, for example from a baseline."""
        if step is None or not self._store.exists(step):
            return 1.0
        return float(self._store.manifest(step).get("factors", {}).get(turn_id, 1.0))

    def results(self) -> Json:
        """The evaluation results in ``evals/`` of the data folder, unchanged."""
        found = []
        for path in sorted((self._config.home / "evals").glob("*.json")):
            try:
                if path.stat().st_size <= _MAX_RESULT_BYTES:
                    found.append({"name": path.stem, "result": json.loads(path.read_text())})
            except (OSError, ValueError):
                continue
        return {"object": "list", "data": found}

    def index(self) -> int:
        """Index a batch of recent turns for search; returns the number of turns."""
        return self._search.follow()

    async def follow(self) -> None:
        """Keep the search index up to date until cancelled; then disconnect the listeners."""
        try:
            while True:
                try:
                    found = await asyncio.to_thread(self.index)
                except Exception as error:
                    log.warning("search index not updated: %s", type(error).__name__)
                    found = 0
                    await asyncio.sleep(10 * _INDEX_S)
                if not found:
                    await asyncio.sleep(_INDEX_S)
        finally:
            for pulse in self._pulses.values():
                pulse.stop()
            self._search.close()

    # --- decisions ---------------------------------------------------------------------------

    def forget(self, kind: str, name: str, user: str | None) -> Json | None:
        return Forgetting(self._config.home, self._ledgers, self._store).forget(kind, name, user)

    def replies_of(self, session_id: str, user: str | None) -> dict[str, str] | None:
        session = self._ledgers.serve.session(session_id)
        if session is None or user not in (None, session["user"]):
            return None
        ids = [turn["id"] for turn in self._ledgers.serve.turn_summaries(session_id)]
        texts = turn_texts(self._ledgers.serve, ids)
        return {turn_id: plain_text(said["reply"]) for turn_id, said in texts.items()}

    def feedback_of(self, turn_id: str) -> list[Json]:
        found = self._ledgers.serve.events_of(turn_id)
        return [event.data for event in found if event.kind == events.FEEDBACK]

    async def record_event(
        self, turn_id: str | None, kind: str, data: Json, messages: list[Message] | None = None
    ) -> None:
        await self._system.record_event(turn_id, kind, data, messages)

    async def promote(self, version: int, why: str, scope: Scope = EVERYONE) -> Json:
        return await self._system.promote(version, why, scope)

    async def exclude_turn(self, turn_id: str, user: str | None, by: str) -> Json | None:
        turn = await asyncio.to_thread(view_turn, self._ledgers, turn_id, user)
        if turn is None:
            return None
        if turn["state"] == "trained":
            raise ValueError(
                f"version {turn['step']} has learned from this turn already; roll back to undo that"
            )
        if _can_exclude(turn):
            await self.record_event(turn_id, events.EXCLUDE, {"by": by})
        return {"id": turn_id, "excluded": True}

    async def exclude_session(self, session_id: str, user: str | None, by: str) -> Json | None:
        session = await asyncio.to_thread(view_session, self._ledgers, session_id, user)
        if session is None:
            return None
        if session["turns"]:
            before = {turn["id"] for turn in session["turns"] if turn["excluded"]}
            # Recorded first, so that turns that arrive meanwhile are known to belong to an excluded session.
            if not session["excluded"]:
                await self.record_event(session["turns"][0]["id"], events.EXCLUDE_SESSION, {"by": by})
            session = await asyncio.to_thread(view_session, self._ledgers, session_id, user) or session
            for turn in session["turns"]:
                if turn["id"] not in before and _can_exclude({**turn, "excluded": False}):
                    await self.record_event(turn["id"], events.EXCLUDE, {"by": by})
        learned = [turn["id"] for turn in session["turns"] if turn["state"] == "trained"]
        return {"id": session_id, "excluded": True, "learned_already": learned}

    async def include_turn(self, turn_id: str, user: str | None, by: str) -> Json | None:
        """Undo an exclusion, including its session's, for this turn only."""
        turn = await asyncio.to_thread(view_turn, self._ledgers, turn_id, user)
        if turn is None:
            return None
        if turn["excluded"]:
            await self.record_event(turn_id, events.INCLUDE, {"by": by})
        return {"id": turn_id, "excluded": False}

    async def include_session(self, session_id: str, user: str | None, by: str) -> Json | None:
        """Include the whole session, also turns that were excluded individually."""
        session = await asyncio.to_thread(view_session, self._ledgers, session_id, user)
        if session is None:
            return None
        if session["excluded"] or any(turn["excluded"] for turn in session["turns"]):
            await self.record_event(session["turns"][0]["id"], events.INCLUDE_SESSION, {"by": by})
            # An event for every turn: later turns were excluded without an event of their own.
            session = await asyncio.to_thread(view_session, self._ledgers, session_id, user) or session
            for turn in session["turns"]:
                await self.record_event(turn["id"], events.INCLUDE, {"by": by})
        return {"id": session_id, "excluded": False}

    async def _load(self, version: int) -> None:
        """Load a version; ``ServingSystem.follow`` unloads it when it is no longer requested."""
        self.used_at[version] = time.monotonic()
        loaded = self._engine.status().versions
        if version in loaded:
            return
        if len(loaded) > _MAX_LOADED:
            raise ValueError("too many versions are in memory; try again in two minutes")
        await self._engine.load(await asyncio.to_thread(self._store.weights, version))

    async def export(self, version: int, kind: str) -> Json:
        """Export in a separate process, so that merging takes no time or memory from serving."""
        if (lack := await asyncio.to_thread(self._store.problem, version)) is not None:
            raise LookupError(lack)
        target = self._config.home / "exports" / f"version-{version}-{kind}"
        target = target.with_suffix(".gguf") if kind == "gguf" else target
        if target.exists():
            return _exported(version, kind, target)
        async with self._exporting:
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            arguments = ["policy", "export", str(version), "--format", kind, "--to", str(target)]
            child = await asyncio.create_subprocess_exec(
                "nice", sys.executable, "-m", "openclaw_rl", *arguments,
                env={**os.environ, **to_environment(self._config)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            try:
                _, problem = await asyncio.wait_for(child.communicate(), _EXPORT_S)
            except BaseException:
                child.kill()
                raise
        if child.returncode:
            raise ValueError(
                problem.decode(errors="replace").strip().rpartition("\n")[2] or "the export failed"
            )
        return _exported(version, kind, target)


def _can_exclude(turn: Json) -> bool:
    """False if it is already excluded, already trained on, or never used, such as a side request.

    A turn without a training signal may still be used: its request may serve to teach a wish.
    """
    if turn["excluded"] or turn["state"] == "trained":
        return False
    return turn["state"] != "excluded" or turn["reason"] not in COUNTERS


def _exported(version: int, kind: str, target: Path) -> Json:
    files = [target] if target.is_file() else [file for file in target.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return {"version": version, "format": kind, "path": str(target), "bytes": size}
