"""The learn process, wired: what was captured is judged, what was judged is learned from.

The second half of the system, in a process of its own, so that nothing it does can hold up a reply.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from openclaw_rl.algo import create_algorithm, step_size
from openclaw_rl.capabilities import check_training
from openclaw_rl.capture import database
from openclaw_rl.capture.desk import LedgerDesk
from openclaw_rl.capture.learned import view_step_turns
from openclaw_rl.capture.lineage import Lineage
from openclaw_rl.capture.normalise import is_ephemeral
from openclaw_rl.config import Config
from openclaw_rl.engine.remote import EngineGone, RemoteEngine
from openclaw_rl.judge import JudgeParts, create_judge
from openclaw_rl.judge.rules import degeneration
from openclaw_rl.judge.worker import JudgeWorker
from openclaw_rl.models import default_cache_dir, resolve_model
from openclaw_rl.parts import (
    build_engine,
    build_renderer,
    engine_socket,
    load_tokenizer,
    open_journal,
    open_ledger,
    open_store,
)
from openclaw_rl.plugins import load_object
from openclaw_rl.serve import chat
from openclaw_rl.serve.auth import DEFAULT_USER, KeyRing
from openclaw_rl.serve.listen import announced
from openclaw_rl.sinks import Fan, create_sinks, step_metrics
from openclaw_rl.train import TrainerParts, create_trainer
from openclaw_rl.train.gate import Bounds, Gate
from openclaw_rl.train.lessons import EngineScorer, Prompts, Sampler, excuse
from openclaw_rl.train.policies import AVERAGE
from openclaw_rl.train.worker import LearnOptions, LearnWorker, hash_of
from openclaw_rl.types import BASE_VERSION, Engine, Json, Judge, Renderer, Rollout, Sink, Trainer, Weights

#: Why a turn is not trained on where requests are passed on.
UPSTREAM = "training is off: another server answers (--upstream), and its weights are not here"
#: Under which number the moving average is loaded as a teacher.
AVERAGE_VERSION = -1


async def learn(config: Config) -> None:
    """Judge and train on what was captured, until told to stop."""
    if config.serve.upstream:
        await _only_judge(config)
        return
    path = await asyncio.to_thread(resolve_model, config.engine.model, default_cache_dir())
    ledger, journal = open_ledger(config), open_journal(config)
    with database.only_one(journal.db) as alone:
        if not alone:
            raise ValueError("another learn process works on this ledger; one at a time")
        engine = await _engine(config, path)
        tokenizer = load_tokenizer(path)
        renderer = build_renderer(config, path, tokenizer)
        judge = build_judge(config, engine, renderer, tokenizer)
        desk = LedgerDesk(ledger, journal, chat.internal_messages, config.judge.session_idle_s)
        judging = JudgeWorker(
            desk, judge, concurrency=config.judge.judge_concurrency, timeout_s=config.judge.judge_timeout_s
        )
        work = [judging.run()]
        held: list[Callable[[], None]] = []
        if config.learn.train:
            lineage = Lineage(ledger, journal)
            sinks = create_sinks(config.learn.sinks, config.home)
            held.append(sinks.close)
            learner = build_learner(config, engine, lineage, renderer, tokenizer, path, sinks=sinks)
            work.append(learner.run())
        if config.learn.rollout:
            work.append(_roll_out(config, load_object("rollout", config.learn.rollout)))
        try:
            await asyncio.gather(*work)
        finally:
            for release in held:
                release()
            await judge.close()
            await engine.close()
            journal.close()
            ledger.close()


async def _only_judge(config: Config) -> None:
    """Another server answers: a judging model, if one is wanted, is loaded here, and nothing is trained."""
    ledger, journal = open_ledger(config), open_journal(config)
    with database.only_one(journal.db) as alone:
        if not alone:
            raise ValueError("another learn process works on this ledger; one at a time")
        wanted = config.judge
        local = config.engine.model if wanted.judge == "label" else ""
        judge = create_judge(wanted.judge, _judge_parts(config, model=wanted.judge_model or local))
        desk = LedgerDesk(ledger, journal, chat.internal_messages, wanted.session_idle_s)
        judging = JudgeWorker(
            desk, judge, concurrency=wanted.judge_concurrency, timeout_s=wanted.judge_timeout_s
        )
        try:
            await asyncio.gather(judging.run(), excuse(Lineage(ledger, journal), UPSTREAM))
        finally:
            await judge.close()
            journal.close()
            ledger.close()


async def _roll_out(config: Config, rollout: Rollout) -> None:
    """Somebody's own client of the server; what it meets is captured and judged like any conversation."""
    keys = KeyRing(config.home / "keys.json", os.environ.get("OPENCLAW_RL_API_KEY"))
    while (url := announced(config.home)) is None:
        await asyncio.sleep(0.5)
    await rollout(f"{url}/v1", keys.key_of(DEFAULT_USER) or "")


async def _engine(config: Config, path: Path) -> Engine:
    """The server's, through its private door; or one of our own where the server is on another host."""
    if config.learn.own_engine:
        return await asyncio.to_thread(build_engine, config, path)
    engine = RemoteEngine(engine_socket(config))
    while True:
        with suppress(EngineGone):
            await engine.connect()
            return engine
        await asyncio.sleep(0.5)


def build_judge(config: Config, engine: Engine, renderer: Renderer, tokenizer: Any) -> Judge:
    parts = _judge_parts(config, config.judge.judge_model or "", engine, renderer, _encoder(tokenizer))
    return create_judge(config.judge.judge, parts)


def _judge_parts(
    config: Config,
    model: str,
    engine: Engine | None = None,
    renderer: Renderer | None = None,
    encode: Callable[[str], list[int]] | None = None,
) -> JudgeParts:
    wanted = config.judge
    return JudgeParts(
        engine=engine,
        encode=encode,
        renderer=renderer,
        num_votes=wanted.majority_vote_n,
        threshold=wanted.majority_vote_threshold,
        base_url=wanted.judge_url or "",
        model=model,
        load=partial(_load_judge_model, config),
    )


def _load_judge_model(config: Config, model: str) -> tuple[Engine, Callable[[str], list[int]], Renderer]:
    """Another model than the served one gets an engine here: one thread, at the priority of this process."""
    from openclaw_rl.engine.local import LocalEngine, LocalEngineOptions

    path = resolve_model(model, default_cache_dir())
    tokenizer = load_tokenizer(path)
    options = LocalEngineOptions(device=config.engine.device, num_threads=1, max_running=4)
    # The renderer that was asked for belongs to the served model; this one's is recognised.
    neutral = config.model_copy(update={"engine": config.engine.model_copy(update={"renderer": None})})
    renderer = build_renderer(neutral, path, tokenizer)
    return LocalEngine(path, options), _encoder(tokenizer), renderer


def build_learner(
    config: Config,
    engine: Engine,
    lineage: Lineage,
    renderer: Renderer,
    tokenizer: Any,
    model: Path,
    bounds: Bounds | None = None,
    sinks: Sink | None = None,
) -> LearnWorker:
    wanted, algorithm = config.learn, create_algorithm(config.learn)
    size = step_size(wanted, algorithm.needs)
    check_training(config, engine.capabilities, algorithm.needs)
    settings = {
        "learn": wanted.model_dump(exclude={"policies"}),  # where they lie changes nothing
        "train": config.train.model_dump(),
        "model": config.engine.model,
    }
    return LearnWorker(
        lineage,
        Sampler(
            lineage,
            algorithm,
            EngineScorer(engine, _teacher(config, lineage)),
            Prompts(renderer, chat.stored_request, is_ephemeral),
            wanted.held_out_share,
        ),
        algorithm,
        lambda: build_trainer(config, model),
        Gate(engine, renderer, _encoder(tokenizer), degeneration, bounds),
        engine,
        open_store(config),
        LearnOptions(
            batch_size=size.samples,
            max_age_s=wanted.batch_max_age_s,
            min_signal=wanted.min_signal,
            max_staleness=wanted.max_staleness,
            replay=size.replayed,
            config_hash=hash_of(settings),
        ),
        say,
        log_step=_step_logger(lineage, sinks or Fan([])),
    )


def _step_logger(lineage: Lineage, sink: Sink) -> Callable[[int, Json, Json], None]:
    def log_step(version: int, metrics: Json, gate: Json) -> None:
        rewards = [row["score"] for row in view_step_turns(lineage, version, None, limit=10_000)]
        sink.log(step_metrics(metrics, gate, rewards), version)

    return log_step


def build_trainer(config: Config, model: Path) -> Trainer:
    # torch takes seconds to import; judging need not wait for it.
    from openclaw_rl.engine.frozen import native_linear

    return create_trainer(TrainerParts(model, config.engine.model, config.train, native_linear))


def _teacher(config: Config, lineage: Lineage) -> Callable[[], Weights | None]:
    """Which version is asked with the hint; None for the base."""
    wanted, store = config.learn, open_store(config)
    if wanted.teacher == "average" and not config.train.average_decay:
        raise ValueError("the teacher 'average' needs --average-decay, such as 0.9")

    def choose() -> Weights | None:
        version = wanted.teacher_version if wanted.teacher == "frozen" else lineage.serving()
        if wanted.teacher == "base" or version == BASE_VERSION:
            return None
        if wanted.teacher == "average":
            return Weights.in_folder(AVERAGE_VERSION, store.path(version) / AVERAGE)
        return store.weights(version)

    return choose


def _encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False))


def say(line: str) -> None:
    print(f"learn: {line}", file=sys.stderr, flush=True)
