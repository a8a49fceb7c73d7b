"""What the Tinker engine and trainer share, without a server."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from openclaw_rl.config import Config, EngineConfig
from openclaw_rl.errors import EngineAway, RequestError
from openclaw_rl.processes.parts import model_folder
from openclaw_rl.tinker_service import _within, facts_of, sampler_of, weights_uri


def test_a_version_s_uri_says_all_that_training_goes_on_from() -> None:
    facts = {"state": "tinker://run/weights/a", "steps": 3, "algorithm": {"mean": {"ann #1": 0.25}}}
    uri = weights_uri("tinker://run/sampler_weights/b", facts)
    assert sampler_of(uri) == "tinker://run/sampler_weights/b"
    assert facts_of(uri) == facts
    with pytest.raises(ValueError, match="not made by --trainer tinker"):
        sampler_of("file:///home/ann/policies/3")


def test_a_model_elsewhere_needs_no_weights_here(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    elsewhere = Config(engine=EngineConfig(engine="tinker", model=str(tmp_path)))
    assert model_folder(elsewhere) == tmp_path.resolve()
    with pytest.raises(ValueError, match=r"lacks model.safetensors"):
        model_folder(Config(engine=EngineConfig(model=str(tmp_path))))


def test_an_engine_that_is_away_is_a_503_for_people_and_waited_for_by_learning() -> None:
    away = EngineAway("vLLM ended")
    assert isinstance(away, RequestError)
    assert isinstance(away, ConnectionError)
    assert (away.status, away.retry_after_s) == (503, 5)
    assert "vLLM ended" in str(away)


def test_a_server_that_died_while_the_client_connects_is_not_waited_for_without_end() -> None:
    """The client itself sets no limit there, so the learn process hung."""
    answered = Event()
    with pytest.raises(EngineAway, match="http://head:8000 does not answer"):
        _within(0.01, answered.wait, "http://head:8000")
    answered.set()
    assert _within(60, lambda: "models", "") == "models"
    with pytest.raises(KeyError):
        _within(60, lambda: {}["models"], "")
