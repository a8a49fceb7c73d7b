from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from openclaw_rl.serve.metrics import Metrics


def samples(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_unknown_fields_are_ignored_and_counted(client: httpx.AsyncClient, ask) -> None:  # type: ignore[no-untyped-def]
    body = ask(frequency_penalty=0.5, wibble=[1], user="u", metadata={"a": "b"})
    for _ in range(2):
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    counted = samples((await client.get("/metrics")).text)
    assert counted["openclaw_rl_ignored_fields_total", ("wibble",)] == 2
    for known in ("frequency_penalty", "user"):
        assert ("openclaw_rl_ignored_fields_total", (known,)) not in counted


async def test_requests_tokens_and_turns_are_counted(client: httpx.AsyncClient, system, ask) -> None:  # type: ignore[no-untyped-def]
    usage = (await client.post("/v1/chat/completions", json=ask())).json()["usage"]
    await client.post("/v1/chat/completions", json=ask(n=0))
    await client.get("/v1/models/first")
    await client.get("/v1/models/second")
    await system.gateway.drain()
    counted = samples((await client.get("/metrics")).text)
    assert counted["openclaw_rl_requests_total", ("chat", "200")] == 1
    assert counted["openclaw_rl_requests_total", ("/v1/chat/completions", "400")] == 1
    assert counted["openclaw_rl_requests_total", ("/v1/models/{name}", "404")] == 2
    assert counted["openclaw_rl_tokens_total", ("prompt",)] == usage["prompt_tokens"]
    assert counted["openclaw_rl_tokens_total", ("completion",)] == usage["completion_tokens"]
    assert counted["openclaw_rl_turns_recorded", ()] == 1
    assert counted["openclaw_rl_running", ()] == 0
    assert counted["openclaw_rl_first_token_seconds_count", ()] == 1


@pytest.mark.parametrize("field", ["\ud800", "日本", 'a"b\n', "\x00", "x" * 1000])
async def test_no_field_name_breaks_the_metrics(client: httpx.AsyncClient, ask, field: str) -> None:  # type: ignore[no-untyped-def]
    import json

    body = json.dumps({**ask(), field: 1})
    answer = await client.post(
        "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code in (200, 400)
    metrics = await client.get("/metrics")
    assert metrics.status_code == 200
    assert samples(metrics.text)


def test_clients_cannot_invent_labels_without_end() -> None:
    metrics = Metrics()
    for number in range(1000):
        metrics.count_ignored(f"field{number}")
    counted = samples(metrics.render({}).decode())
    names = [labels for name, labels in counted if name == "openclaw_rl_ignored_fields_total"]
    assert len(names) == 201
    assert counted["openclaw_rl_ignored_fields_total", ("(other)",)] == 800
