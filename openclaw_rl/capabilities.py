"""Checks at start whether the chosen parts work together; errors say what to change."""

from __future__ import annotations

from typing import Any

from openclaw_rl import engine, train
from openclaw_rl.algo import ALGORITHMS, algorithm_for, create_algorithm
from openclaw_rl.config import Config
from openclaw_rl.engine import ENGINES
from openclaw_rl.judge import JUDGES
from openclaw_rl.plugins import find, load_object
from openclaw_rl.render import RENDERERS
from openclaw_rl.scopes import ENVIRONMENTS
from openclaw_rl.sinks import SINKS
from openclaw_rl.train.losses import LOSSES
from openclaw_rl.train.takeover import take_over_shares
from openclaw_rl.types import EVERYONE, NO_SIGNAL, Algorithm, Capabilities, Needs


def check_choices(config: Config) -> None:
    """ValueError for a name or a device that does not exist, before a model is resolved or loaded."""
    find("judge", config.judge.judge, JUDGES)
    for sink in filter(None, map(str.strip, config.learn.sinks.split(","))):
        find("metrics sink", sink, SINKS)
    if config.serve.take_over:
        _check_take_over(config)
    if config.passes_on:
        return
    engine.check_settings(config.engine)
    if config.engine.renderer is not None:
        find("renderer", config.engine.renderer, RENDERERS)
    if config.learn.train:
        for scope in (EVERYONE, ENVIRONMENTS):
            algorithm_for(scope, config.learn)
        _check_loss(config)
        train.check_settings(config.train)
        if (known := engine.capabilities_of(config.engine.engine)) is not None:
            _check_weights(config, known)


def _check_loss(config: Config) -> None:
    """Somebody's own takes what the algorithm gives: advantages, or a teacher's log-probs."""
    if config.learn.loss is None:
        return
    path, algo = config.learn.loss, config.learn.algo
    wanted, given = _padding(load_object("loss", path)), _padding_for(create_algorithm(config.learn))
    if wanted != given:
        kinds = {NO_SIGNAL: "a teacher's log-probs", 0.0: "advantages"}
        fits = next(
            (name for name in ALGORITHMS if _padding_for(ALGORITHMS[name]()) == wanted), "of your own"
        )
        raise ValueError(
            f"--loss {path} is for {kinds.get(wanted, 'another signal')}, and --algo {algo} gives "
            f"{kinds[given]}; use --algo {fits}, or give the loss another 'padding' (openclaw_rl.types.Loss)"
        )


def _padding(loss: Any) -> float:
    return float(getattr(loss, "padding", 0.0))


def _padding_for(algorithm: Algorithm) -> float:
    """Which signal an algorithm gives is known by the loss that it asks for."""
    return _padding(LOSSES.get(algorithm.needs.loss))


def _check_take_over(config: Config) -> None:
    """Check the requirements for training on another provider's answers."""
    url = config.serve.upstream
    if not url:
        raise ValueError("--take-over needs --upstream URL: whose answers to learn from and to take over")
    if config.serve.upstream_terms != "allow-learning":
        raise ValueError(
            f"--take-over trains the model here on the answers of {url}. The terms of some providers forbid "
            "that. Read them, and if they allow it, say so once: --upstream-terms allow-learning "
            "(or upstream_terms under [serve] in config.toml)"
        )
    take_over_shares(config.serve.take_over_shares)
    if config.learn.train and create_algorithm(config.learn).needs.loss != "forward-kl":
        raise ValueError(f"--take-over learns from text, which --algo {config.learn.algo} cannot; use hinted")


def check_training(config: Config, able: Capabilities, needs: Needs) -> None:
    """ValueError if the configured trainer and algorithm do not match the engine's capabilities."""
    engine_name, trainer_name = config.engine.engine, config.train.trainer
    trainer = train.capabilities_of(trainer_name)
    if config.train.finetune == "full":
        if not trainer.full_weights:
            raise ValueError(f"--trainer {trainer_name} trains adapters only; use --finetune lora")
        if not able.full_weights:
            raise ValueError(f"--engine {engine_name} loads adapters only; use --finetune lora")
        if config.train.kl_coefficient:
            raise ValueError("--kl-coefficient needs the base beside what is trained; use --finetune lora")
    elif not able.adapters:
        raise ValueError(f"--engine {engine_name} loads no adapters; use --finetune full, or --no-train")
    if config.learn.loss is not None:
        if not trainer.custom_losses:
            raise ValueError(f"--trainer {trainer_name} takes no Python function as a loss; leave out --loss")
    elif needs.loss not in trainer.losses:
        known = ", ".join(sorted(trainer.losses))
        raise ValueError(
            f"--algo {config.learn.algo} needs the loss {needs.loss}, which --trainer {trainer_name} lacks "
            f"(it has: {known}); choose another --algo or --trainer"
        )
    if not able.sampled_logprobs:
        raise ValueError(
            f"--engine {engine_name} cannot tell how likely a reply was where temperature, top-k or top-p "
            "changed it, which learning needs: its server does not tell the likeliest tokens. Use a server "
            "that does (SkyRL with vLLM), accept an approximation with "
            "--engine-options assume_temperature_1=true, or --no-train"
        )
    if needs.scores and not able.scores_candidates:
        raise ValueError(
            f"--algo {config.learn.algo} asks a teacher for log-probs of chosen tokens, which --engine "
            f"{engine_name} does not give; use --algo binary"
        )
    if (needs.scores or needs.generates) and not able.top_logprobs:
        raise ValueError(
            f"--algo {config.learn.algo} learns from the likeliest tokens at each place, which --engine "
            f"{engine_name} does not tell; use --algo binary"
        )
    _check_weights(config, able)


def _check_weights(config: Config, able: Capabilities) -> None:
    """The engine must be able to load the trainer's weights."""
    makes = train.capabilities_of(config.train.trainer).makes
    if makes in able.loads:
        return
    trainers = [name for name in train.TRAINERS if train.capabilities_of(name).makes in able.loads]
    engines = [name for name in ENGINES if makes in _loads(name)]
    remedies = [*(f"--trainer {name}" for name in trainers), *(f"--engine {name}" for name in engines)]
    wanted = " or ".join(f"{scheme}://…" for scheme in able.loads)
    raise ValueError(
        f"--engine {config.engine.engine} cannot load what --trainer {config.train.trainer} makes: "
        f"weights at {makes}://…, where it wants {wanted}; use {' or '.join(remedies) or '--no-train'}"
    )


def _loads(engine_name: str) -> tuple[str, ...]:
    known = engine.capabilities_of(engine_name)
    return known.loads if known is not None else ()
