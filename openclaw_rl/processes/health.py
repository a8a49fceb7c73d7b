"""A running system's readiness, status and gauges."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from openclaw_rl import __version__
from openclaw_rl.capture import inspect
from openclaw_rl.capture.leases import view_leases
from openclaw_rl.capture.own_counts import view_own_counts
from openclaw_rl.capture.rollouts import num_unsettled
from openclaw_rl.scopes import is_environment
from openclaw_rl.serve.takeover import TakeOverAnswerer
from openclaw_rl.train.worker import is_due
from openclaw_rl.types import EVERYONE, GRAMMAR_DIALECT, Json, Scope

if TYPE_CHECKING:
    from openclaw_rl.processes.serving_system import ServingSystem


def readiness(system: ServingSystem) -> tuple[bool, Json]:
    health = system.recorder.health()
    learning = None if system.learning is None else asdict(system.learning)
    well = health.ok and (system.learning is None or system.learning.running) and not system.policy_problem
    well = well and not system.keys.problem
    return True, {
        "status": "ok" if well else "degraded",
        "ledger": asdict(health),
        "learn": learning,
        "policy": {"problem": system.policy_problem},
        "keys": {"problem": system.keys.problem},
    }


def status(system: ServingSystem, scope: Scope = EVERYONE, user: str | None = None) -> Json:
    """The whole status, for a scope's policy; values from the ledger are null while it is down.

    ``user``: restrict it to this user's own data.
    """
    engine, health = system.engine.status(), system.recorder.health()
    size, unsettled, passes_on = None, None, system.config.passes_on
    try:
        funnel: Json | None = inspect.view_counts(system.ledgers)
        learning = inspect.view_learning(system.ledgers.policies, scope, everybodys=user is None)
        now = {**system.dashboard.now(scope, user), "hosts": _hosts(system) if user is None else None}
        now["take_over"] = _take_over(system, scope)
        size = system.ledgers.policies.full_batch(system.samples_per_step(scope), scope)
        unsettled = num_unsettled(system.ledgers, scope) if is_environment(scope) else None
        busy = bool(system.learning and funnel and _is_busy(system, funnel, learning))
        funnel = funnel if user is None else view_own_counts(system.ledgers, user)
    except Exception:  # the ledger is down; `ledger` below reports it
        funnel, learning, busy = None, {"samples": None, "stage": None, "last_step": None}, False
        now = {"traffic": None, "last_swap": None, "wishes": None, "take_over": None, "hosts": None}
    _, ready = readiness(system)
    return {
        "version": __version__,
        "status": ready["status"],
        "model": system.gateway.model_name,
        "scope": scope,
        "policy_version": engine.version_for(scope),
        "store_false": system.config.serve.store_false,
        "uptime_s": time.time() - system.started_at,
        "busy": busy,
        "funnel": funnel,
        "queues": {
            # Users' requests only; the engine's own count includes judging and gate checks.
            "running": min(engine.num_running, system.gateway.num_inflight) if user is None else None,
            "waiting": max(0, system.gateway.num_inflight - engine.num_running) if user is None else None,
            "judge": funnel["judge_queue"] if funnel else None,
            "samples": learning["samples"],
            "samples_per_step": size or system.samples_per_step(scope),
            "attempts": unsettled,
        },
        "engine": {
            "cached_tokens": engine.cached_tokens if user is None else None,
            "context_length": system.engine.context_length,
            # Null: the model is on another server, and its capabilities are unknown.
            "forces_calls": None if passes_on else system.engine.capabilities.grammar == GRAMMAR_DIALECT,
            "reads_pictures": None if passes_on else False,
        },
        "ledger": asdict(health) if user is None else {"ok": health.ok, "error": health.error},
        "learn": ready["learn"],
        "policy": ready["policy"],
        "stage": learning["stage"],
        "last_step": learning["last_step"],
        **now,
    }


def _take_over(system: ServingSystem, scope: Scope) -> Json | None:
    found, answerer = system.dashboard.take_over(scope), system.gateway.answerer
    if found is None or not isinstance(answerer, TakeOverAnswerer):
        return None
    shown = {name: found[name] for name in ("share", "since", "why", "here", "upstream")}
    return {**shown, "problem": answerer.problem}


def _hosts(system: ServingSystem) -> list[Json]:
    """Which hosts learn, and what; empty with SQLite, where only this server's learn process does."""
    learn = system.ledgers.learn
    return view_leases(learn) if learn.db.dialect.name == "postgresql" else []


def _is_busy(system: ServingSystem, funnel: Json, learning: Json) -> bool:
    """Whether work is in progress or due; samples that wait for a full batch do not count."""
    settings = system.config.learn
    if funnel["judge_due"] or funnel["unread"]:
        return True
    if not settings.train:
        return False
    if funnel["by_state"]["judged"] or learning["stage"] or learning["flushing"]:
        return True
    return any(_is_due(system, scope) for scope in system.ledgers.policies.waiting_scopes())


def _is_due(system: ServingSystem, scope: Scope) -> bool:
    size = system.ledgers.policies.full_batch(system.samples_per_step(scope), scope)
    return is_due(*system.ledgers.policies.waiting(scope)[:2], size, system.config.learn.min_signal)


def gauges(system: ServingSystem) -> dict[str, float]:
    engine, health = system.engine.status(), system.recorder.health()
    return {
        "running": engine.num_running,
        "waiting": engine.num_waiting,
        "cached_tokens": engine.cached_tokens,
        "policy_version": engine.version_for(),
        "turns_recorded": health.num_recorded,
        "turns_unsaved": health.num_unsaved,
        "turns_lost": health.num_lost,
    }
