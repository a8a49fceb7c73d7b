"""Builds the parts that only the learn process has, from the settings."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from openclaw_rl.algo import algorithm_for, settings_for, step_size
from openclaw_rl.capture.learned import view_step_turns
from openclaw_rl.capture.leases import Leases
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.config import Config
from openclaw_rl.judge import JudgeParts, create_judge
from openclaw_rl.models import default_cache_dir, resolve_model
from openclaw_rl.plugins import load_object
from openclaw_rl.processes.learning_system import ServedModel
from openclaw_rl.processes.membership import until_judging
from openclaw_rl.processes.parts import build_renderer, load_tokenizer, open_store, text_encoder
from openclaw_rl.scopes import PolicyScopes, is_environment
from openclaw_rl.serve.auth import DEFAULT_USER, KeyRing
from openclaw_rl.serve.listen import announced
from openclaw_rl.sinks import step_metrics
from openclaw_rl.train import TrainerParts, create_trainer
from openclaw_rl.train.policies import AVERAGE
from openclaw_rl.train.worker import LearnOptions, Method
from openclaw_rl.types import (
    BASE_VERSION,
    Engine,
    Json,
    Judge,
    Needs,
    Renderer,
    RolloutDriver,
    Scope,
    Sink,
    Trainer,
    Weights,
)
from openclaw_rl.users import Users

#: Why turns are not trained on if requests are passed on to another server.
UPSTREAM = "training is off: another server answers (--upstream), and its weights are not here"
#: The version number under which the moving average is loaded as a teacher.
AVERAGE_VERSION = -1


# --- judging ---------------------------------------------------------------------------------


def build_judge(config: Config, served: ServedModel | None) -> Judge:
    """Without a local served model, a judge that needs one loads its own."""
    parts = JudgeParts(
        config.judge,
        engine=served.engine if served else None,
        encode=served.encode if served else None,
        renderer=served.renderer if served else None,
        model=config.engine.model,
        load=partial(_load_judge_model, config),
    )
    return create_judge(config.judge.judge, parts)


async def judge_here(leases: Leases | None, job: Callable[[], Awaitable[None]]) -> None:
    """Run the job until cancelled, once this host is the one that judges."""
    await until_judging(leases)
    await job()


def _load_judge_model(config: Config, model: str) -> tuple[Engine, Callable[[str], list[int]], Renderer]:
    """A judge model other than the served one gets its own engine: one thread, at this process's priority."""
    from openclaw_rl.engine.local import LocalEngine
    from openclaw_rl.engine.local_options import LocalEngineOptions

    path = resolve_model(model, default_cache_dir())
    tokenizer = load_tokenizer(path)
    options = LocalEngineOptions(device=config.engine.device, num_threads=1, max_running=4)
    # The renderer in the settings is the served model's; this model's is detected.
    neutral = config.model_copy(update={"engine": replace(config.engine, renderer=None)})
    renderer = build_renderer(neutral, path, tokenizer)
    return LocalEngine(path, options), text_encoder(tokenizer), renderer


# --- training --------------------------------------------------------------------------------


def build_trainer(config: Config, model: Path, engine: Engine | None = None) -> Trainer:
    """``engine`` may be on the same GPU, which it shares then."""
    # Imported late: torch takes seconds to import, and judging need not wait for it.
    from openclaw_rl.engine.frozen import int4_linear, native_linear

    frozen_linears = {"as-is": native_linear, "int4": int4_linear}
    on_gpu, num_live = (getattr(engine, name, None) for name in ("on_gpu", "num_live"))
    return create_trainer(
        TrainerParts(model, config.engine.model, config.train, frozen_linears, on_gpu, num_live)
    )


def methods(config: Config, fingerprint: str = "") -> Callable[[Scope], Method]:
    """The method for each scope: one for conversations, one for environments."""
    made: dict[bool, Method] = {}

    def method_for(scope: Scope) -> Method:
        if (key := is_environment(scope)) not in made:
            algorithm = algorithm_for(scope, config.learn)
            made[key] = Method(algorithm, learn_options(config, algorithm.needs, scope, fingerprint))
        return made[key]

    return method_for


def learn_options(config: Config, needs: Needs, scope: Scope, fingerprint: str) -> LearnOptions:
    settings = settings_for(scope, config.learn, config.serve.take_over)
    size = step_size(settings, needs)
    # Settings that do not affect training are left out.
    hashed = {
        "learn": config.learn.model_dump(exclude={"policies", "keep_versions"}),
        "train": asdict(config.train),
        "model": config.engine.model,
    }
    config_hash = hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:16]
    return LearnOptions(settings, size.samples, size.replayed, config_hash, fingerprint)


def sharing(config: Config) -> Callable[[Scope], bool]:
    """Which policies serve more than one key; evaluated on each call, since keys and groups may change."""
    keys, users = KeyRing.in_home(config.people, create=False), Users.in_home(config.people)

    def names() -> list[str]:
        keys.reload()
        return keys.users

    return PolicyScopes(config.serve.policy_scope, DEFAULT_USER, users, names).is_shared


def choose_teacher(config: Config, policies: PolicyLedger) -> Callable[[Scope], Weights | None]:
    """The teacher's weights by scope; None for the base."""
    settings, store = config.learn, open_store(config)
    if settings.teacher == "average" and not config.train.average_decay:
        raise ValueError("the teacher 'average' needs --average-decay, such as 0.9")

    def choose(scope: Scope) -> Weights | None:
        version = settings.teacher_version if settings.teacher == "frozen" else policies.serving(scope)
        if settings.teacher == "base" or version == BASE_VERSION:
            return None
        if settings.teacher == "average":
            return Weights.in_folder(AVERAGE_VERSION, store.path(version) / AVERAGE)
        return store.weights(version)

    return choose


def step_logger(policies: PolicyLedger, sink: Sink) -> Callable[[int, Json, Json], None]:
    def log_step(version: int, metrics: Json, gate: Json) -> None:
        rewards = [row["score"] for row in view_step_turns(policies, version, None, limit=10_000)]
        sink.log(step_metrics(metrics, gate, rewards), version)

    return log_step


# --- custom rollouts -------------------------------------------------------------------------


def load_rollout(config: Config) -> Callable[[], Awaitable[None]]:
    return partial(_roll_out, config, load_object("rollout", config.learn.rollout or ""))


async def _roll_out(config: Config, rollout: RolloutDriver) -> None:
    """Run a custom client of the server; its conversations are captured and judged like any other."""
    keys = KeyRing.in_home(config.people)
    while (url := announced(config.home)) is None:
        await asyncio.sleep(0.5)
    await rollout(f"{url}/v1", keys.key_of(DEFAULT_USER) or "")


def print_progress(line: str) -> None:
    print(f"learn: {line}", file=sys.stderr, flush=True)
