"""What the Tinker engine and trainer share, without a server."""

from __future__ import annotations

import json
import logging
import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest

from openclaw_rl import train
from openclaw_rl.algo import create_algorithm
from openclaw_rl.capabilities import check_training
from openclaw_rl.config import Config, EngineConfig, TrainConfig, load_config
from openclaw_rl.engine import check_settings
from openclaw_rl.engine.fireworks import FireworksEngine
from openclaw_rl.engine.tinker import TinkerEngine, TinkerEngineOptions
from openclaw_rl.errors import EngineAway, RequestError
from openclaw_rl.fireworks_service import FireworksService
from openclaw_rl.processes.parts import model_folder
from openclaw_rl.tinker_service import TinkerService, within
from openclaw_rl.train.tinker import TinkerTrainer, TinkerTrainerOptions
from openclaw_rl.types import Capabilities, Weights

TINKER = TinkerService()
URL = "http://head:8000"


def test_a_version_s_uri_says_all_that_training_goes_on_from() -> None:
    facts = {"state": "tinker://run/weights/a", "steps": 3, "algorithm": {"mean": {"ann #1": 0.25}}}
    uri = TINKER.weights_uri("tinker://run/sampler_weights/b", facts)
    assert TINKER.sampler_of(uri) == "tinker://run/sampler_weights/b"
    assert TINKER.facts_of(uri) == facts
    with pytest.raises(ValueError, match="not made by --trainer tinker"):
        TINKER.sampler_of("file:///home/ann/policies/3")


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
        within(0.01, answered.wait, "http://head:8000")
    answered.set()
    assert within(60, lambda: "models", "") == "models"
    with pytest.raises(KeyError):
        within(60, lambda: {}["models"], "")


# --- what a server does, found out at the start, with a stand-in for the client's package -----------------


@dataclass
class Service:
    """A server of the protocol that sums or takes means, and tells the likeliest tokens or does not."""

    takes_means: bool = False
    norm_name: str | None = "skyrl.ai/grad_norm"
    tells_likeliest: bool = True
    error: Exception | None = None
    num_open: int = 0
    calls: list[str] = field(default_factory=list)

    def get_server_capabilities(self) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(supported_models=[SimpleNamespace(model_name="tiny")])

    def create_lora_training_client(self, name: str, **_: Any) -> Any:
        self.num_open += 1
        return self

    model_id = "throw-away"

    @property
    def holder(self) -> Any:
        return SimpleNamespace(close=lambda: None)

    def forward_backward(self, rows: list[Any], loss: str) -> Any:
        self.calls.append(loss)
        self._norm = 0.25 * (1 if self.takes_means else len(rows))
        return SimpleNamespace(result=lambda timeout: None)

    def optim_step(self, parameters: Any) -> Any:
        assert parameters.learning_rate == 0.0, "nothing is trained"
        metrics = {self.norm_name: self._norm} if self.norm_name else {}
        return SimpleNamespace(result=lambda timeout: SimpleNamespace(metrics=metrics))

    def create_sampling_client(self, base_model: str) -> Any:
        return self

    def sample(self, *_: Any, **more: Any) -> Any:
        if not self.tells_likeliest:
            error = sys.modules["tinker"].BadRequestError("topk_prompt_logprobs is not supported")
            error.status_code = 400
            raise error
        return SimpleNamespace(result=lambda timeout: SimpleNamespace(topk_prompt_logprobs=[]))


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    found, module = Service(), ModuleType("tinker")
    error = type("TinkerError", (Exception,), {"status_code": 0})
    kinds = ("AuthenticationError", "APIConnectionError", "RequestFailedError", "BadRequestError",
             "NotFoundError", "UnprocessableEntityError")  # fmt: skip
    values: dict[str, Any] = {name: type(name, (error,), {}) for name in kinds} | {
        "TinkerError": error, "__version__": "0.25.0", "ServiceClient": lambda **_: found,
        "AdamParams": SimpleNamespace, "Datum": lambda *parts: parts, "SamplingParams": SimpleNamespace,
        "ModelInput": SimpleNamespace(from_ints=list),
    }  # fmt: skip
    for name, value in values.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "tinker", module)
    return found


def trainer(**options: Any) -> TinkerTrainer:
    return TinkerTrainer(TinkerTrainerOptions(url="http://127.0.0.1:1", name="tiny", **options))


@pytest.mark.parametrize("takes_means", [True, False])
def test_whether_a_server_sums_or_takes_means_is_measured(service: Service, takes_means: bool) -> None:
    service.takes_means = takes_means
    found, other = ("mean", "sum") if takes_means else ("sum", "mean")
    assert trainer().options.reduction == trainer(reduction=found).options.reduction == found
    with pytest.raises(EngineAway, match=f"takes the {found} over rows.*leave reduction out"):
        trainer(reduction=other)
    assert service.num_open == 3
    assert set(service.calls) == {"cross_entropy"}


def test_what_cannot_be_measured_is_said(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    service.norm_name = None
    assert trainer().options.reduction == "sum"
    assert "could not be checked" in caplog.text
    caplog.clear()
    assert trainer(reduction="mean").options.reduction == "mean"
    assert caplog.text == "", "whoever says it knows"


def test_a_server_that_does_not_clip_is_named(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    trainer()
    assert "--grad-clip has no effect" in caplog.text
    with pytest.raises(EngineAway, match="ignore --grad-clip; leave it out"):
        trainer(grad_clip=0.5)
    caplog.clear()
    service.norm_name = "grad_norm"
    trainer(grad_clip=0.5)
    assert caplog.text == ""


def test_a_client_that_cannot_read_a_server_s_replies_is_refused(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, cloud = TinkerTrainerOptions(url=URL), TinkerTrainerOptions()
    for version in ("0.25.0", "0.25.9"):
        TINKER.check_client(version, own)
    for version in ("0.26.0", "0.27.1rc1", "1.0"):
        TINKER.check_client(version, cloud)
        with pytest.raises(ValueError, match=r"pip install 'tinker>=0\.25,<0\.26'"):
            TINKER.check_client(version, own)
    monkeypatch.setattr(sys.modules["tinker"], "__version__", "0.26.0")
    with pytest.raises(ValueError, match="cannot read the replies of a SkyRL server"):
        TINKER.connect(own)


@pytest.mark.parametrize(
    ("kind", "status", "said"),
    [("AuthenticationError", 401, "refuses the key"), ("TinkerError", 402, "quota of the Tinker service")],
)
def test_a_key_or_a_quota_that_fails_when_a_step_is_due_is_waited_for(
    service: Service, kind: str, status: int, said: str
) -> None:
    """A ValueError would count as a failure of the step, which is given up after three."""
    service.error = getattr(sys.modules["tinker"], kind)("no")
    service.error.status_code = status  # type: ignore[union-attr]
    with pytest.raises(ConnectionError, match=said):
        trainer()
    service.error = None
    assert trainer().options.reduction == "sum"


def test_a_server_that_is_down_when_a_step_begins_is_waited_for(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ValueError would be reported as a step that failed, with the whole trace, every few seconds."""
    waiting, module = trainer(), sys.modules["tinker"]

    def refuses(**_: Any) -> Any:
        raise module.APIConnectionError("connection refused")

    monkeypatch.setattr(module, "ServiceClient", refuses)
    with pytest.raises(EngineAway, match="there is no Tinker server at"):
        waiting.resume(None)


def test_a_saved_state_that_the_server_lost_is_the_steps_fault(service: Service) -> None:
    """A ValueError would put the step back, to be tried without end."""
    starting, weights = trainer(), Weights(3, TINKER.weights_uri("tinker://a/b", {"state": "tinker://a/c"}))

    def lost(state: str) -> Any:
        error = sys.modules["tinker"].NotFoundError("no")
        error.status_code, error.body = 404, {"detail": "no such checkpoint"}
        raise error

    service.create_training_client_from_state_with_optimizer = lost  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=r"saved state of version 3 .*no such checkpoint.*policy promote"):
        starting.resume(weights)


def test_a_quota_is_named_also_where_the_client_fails_over_it(service: Service) -> None:
    """Client 0.25.0 raises an AttributeError while it handles a 402."""
    spent, broken = sys.modules["tinker"].TinkerError("no"), AttributeError("_last_logged_billing")
    spent.status_code, broken.__context__ = 402, spent
    service.error = broken
    with pytest.raises(ConnectionError, match="quota of the Tinker service"):
        trainer()
    assert "quota" in str(TINKER.raised(broken))
    service.error = AttributeError("of another kind")
    with pytest.raises(AttributeError, match="another kind"):
        trainer()


def tinker_engine(folder: Path, **options: Any) -> TinkerEngine:
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 64, "vocab_size": 32}))
    return TinkerEngine(folder, TinkerEngineOptions(model="tiny", url=URL, **options))


def test_learning_from_replies_whose_log_probs_are_unknown_is_refused_or_said(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config({"engine": "tinker", "trainer": "tinker", "algo": "binary"}, environment={})
    needs = create_algorithm(config.learn).needs

    def start(**options: Any) -> Capabilities:
        able = tinker_engine(tmp_path, **options).capabilities
        check_training(config, able, needs)
        return able

    assert start().sampled_logprobs
    service.tells_likeliest = False
    with pytest.raises(ValueError, match=r"assume_temperature_1=true, or --no-train"):
        start()
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING):
        assert not start(assume_temperature_1=True).top_logprobs
    assert "as if sampled at temperature 1" in caplog.text


# --- Fireworks, the second service with this protocol -----------------------------------------------------


def test_fireworks_names_its_own_key_package_and_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    service = FireworksService()
    uri = service.weights_uri("ann/run-1/step-1", {"steps": 3})
    assert uri.startswith("fireworks://ann/run-1/step-1#")
    assert (service.sampler_of(uri), service.facts_of(uri)) == ("ann/run-1/step-1", {"steps": 3})
    with pytest.raises(ValueError, match="not made by --trainer fireworks"):
        service.sampler_of("tinker://run/sampler_weights/b")
    monkeypatch.setitem(sys.modules, "fireworks.training.sdk", None)
    with pytest.raises(ValueError, match=r"pip install 'openclaw-rl\[fireworks\]'"):
        service.connect(TinkerTrainerOptions())
    refused = httpx.HTTPStatusError(
        "no", request=httpx.Request("POST", URL), response=httpx.Response(402, text="secret")
    )
    assert service.problem_of(refused) == "the quota of the Fireworks service is used up"


async def test_closing_does_not_hold_up_the_event_loop() -> None:
    """The service is told over the network that its session is over."""
    threads = []

    class Service(FireworksService):
        def let_go(self, place: Any, service: Any, model: Any) -> None:
            threads.append(threading.current_thread())

    class Opened(FireworksEngine):
        kind = Service()

        def __init__(self) -> None:
            self._options, self._service = TinkerEngineOptions(), None

    await Opened().close()
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


def test_fireworks_wants_its_own_name_of_the_model() -> None:
    settings = EngineConfig(engine="fireworks", model="Qwen/Qwen3-8B")
    with pytest.raises(ValueError, match=r"base_model=accounts/fireworks/models/"):
        check_settings(settings)
    named = replace(settings, engine_options={"base_model": "accounts/fireworks/models/qwen3-8b"})
    check_settings(named)
    with pytest.raises(ValueError, match=r"base_model=accounts/fireworks/models/"):
        train.check_settings(TrainConfig(trainer="fireworks"))
