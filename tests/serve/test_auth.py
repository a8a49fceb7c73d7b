from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.serve.auth import KeyRing

Connect = Callable[..., httpx.AsyncClient]


def is_refusal(answer: httpx.Response) -> bool:
    error = answer.json()["error"]
    return answer.status_code == 401 and error["code"] == "invalid_api_key" and bool(error["message"])


async def test_without_a_key_only_health_is_open(system: ServingSystem, connect: Connect) -> None:
    async with connect(system, key="") as client:
        for path in ("/v1/models", "/v1/status", "/metrics", "/openapi.json", "/v1/turns/x", "/nowhere"):
            assert is_refusal(await client.get(path)), path
        assert is_refusal(await client.post("/v1/chat/completions", json={}))
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        assert (await client.get("/readyz")).json()["status"] == "ok"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer "},
        {"authorization": "Basic {key}"},
        {"authorization": "Bearer {key}x"},
        {"x-api-key": "wrong"},
        {"authorization": b"Bearer \xff\xfe"},
    ],
)
async def test_a_wrong_key_is_refused(
    system: ServingSystem, connect: Connect, headers: dict[str, Any]
) -> None:
    key = system.keys.key_of("default")
    headers = {n: v.replace("{key}", key) if isinstance(v, str) else v for n, v in headers.items()}
    async with connect(system, key="") as client:
        assert is_refusal(await client.get("/v1/models", headers=headers))


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
async def test_the_key_works_in_both_headers(system: ServingSystem, connect: Connect, header: str) -> None:
    key = system.keys.key_of("default")
    value = f"bearer {key}" if header == "authorization" else str(key)
    async with connect(system, key="") as client:
        assert (await client.get("/v1/models", headers={header: value})).status_code == 200


async def test_each_key_names_its_user(system: ServingSystem, connect: Connect, ask: Any) -> None:
    other = KeyRing(system.keys.path).add("ada")  # another process adds it while we serve
    async with connect(system, key=other) as client:
        reply = await client.post("/v1/chat/completions", json=ask())
        turn = (await client.get(f"/v1/turns/{reply.json()['id']}")).json()
    assert turn["user"] == "ada"


async def test_a_removed_key_stops_working_at_once(system: ServingSystem, connect: Connect) -> None:
    ring = KeyRing(system.keys.path)
    key = ring.add("ada")
    async with connect(system, key=key) as client:
        assert (await client.get("/v1/models")).status_code == 200
        ring.remove("ada")
        assert is_refusal(await client.get("/v1/models"))


async def test_authentication_can_be_switched_off(make_system: Any, connect: Connect) -> None:
    async with connect(make_system(auth=False, allowed_hosts="test"), key="") as client:
        assert (await client.get("/v1/models")).status_code == 200


async def test_a_request_without_a_key_is_refused_before_its_body_is_read(system: ServingSystem) -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [],
        "query_string": b"", "http_version": "1.1",
    }  # fmt: skip
    await system.app()(scope, receive, send)
    assert sent[0]["status"] == 401


def test_the_key_file_is_private_and_lasts(tmp_path: Path) -> None:
    first = KeyRing(tmp_path / "keys.json")
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600
    assert KeyRing(tmp_path / "keys.json").key_of("default") == first.key_of("default")
    first.add("ada")
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["keys.json"]


def test_keys_are_long_and_differ(tmp_path: Path) -> None:
    keys = {str(KeyRing(tmp_path / f"{i}.json").key_of("default")) for i in range(20)}
    assert len(keys) == 20
    assert min(map(len, keys)) >= 32


def test_a_fixed_key_wins_and_is_never_written(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    stored = KeyRing(path).key_of("default")
    ring = KeyRing(path, fixed_key="sk-fixed")
    assert (ring.user_of("sk-fixed"), ring.user_of(str(stored))) == ("default", None)
    KeyRing(path).add("ada")
    assert ring.user_of("sk-fixed") == "default", "a reload must not bring the stored key back"
    assert "sk-fixed" not in path.read_text()


def test_users_are_named_sensibly_and_once(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "keys.json")
    for name in ("", "a b", "../x", "-x", "ä", "x" * 65, "a\n"):
        with pytest.raises(ValueError, match="no user name"):
            ring.add(name)
    with pytest.raises(ValueError, match="has a key already"):
        ring.add("default")
    with pytest.raises(ValueError, match="users with a key: default"):
        ring.remove("nobody")


def test_a_broken_key_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{")
    with pytest.raises(ValueError, match=r"keys\.json is no key file"):
        KeyRing(tmp_path / "keys.json")


async def test_keys_never_reach_answers_or_metrics(
    system: ServingSystem, client: httpx.AsyncClient, ask: Any
) -> None:
    await client.post("/v1/chat/completions", json=ask())
    key = str(system.keys.key_of("default"))
    for path in ("/v1/status", "/metrics", "/v1/sessions", "/openapi.json"):
        assert key not in (await client.get(path)).text
    assert json.loads(system.keys.path.read_text()) == {"default": key}
