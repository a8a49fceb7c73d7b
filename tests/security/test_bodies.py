"""Requests that are large: refused before they are read, and nobody else waits for them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.security.conftest import Live, chat, status_of

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "size"),
    [(CHAT, 9 << 20), ("/v1/messages", 9 << 20), ("/v1/login", 600 << 20), ("/v1/feedback", 1 << 20)],
)
def test_a_large_body_is_refused_by_its_head(live: Live, path: str, size: int) -> None:
    with live.connect() as connection:
        connection.sendall(live.head(path, f"Content-Length: {size}", key="" if "login" in path else None))
        assert status_of(connection) == 413


@pytest.mark.parametrize(("path", "size"), [(CHAT, 8 << 20), ("/v1/login", 256 << 10)])
def test_a_body_of_unknown_length_is_refused_when_it_is_too_long(live: Live, path: str, size: int) -> None:
    with live.connect() as connection:
        connection.sendall(live.head(path, "Transfer-Encoding: chunked"))
        piece = b"%x\r\n%s\r\n" % (1 << 16, b" " * (1 << 16))
        for _ in range(size // (1 << 16) + 1):
            connection.sendall(piece)
        assert status_of(connection) == 413, "although the body goes on"


def test_the_refusal_says_what_to_do(live: Live) -> None:
    with live.client() as client:
        answer = client.post(CHAT, content=b" " * (9 << 20))
    assert answer.status_code == 413
    assert "8 MB" in answer.json()["error"]["message"]


def test_a_body_of_very_many_values_is_refused(live: Live) -> None:
    with live.client() as client:
        assert client.post(CHAT, content=b"[" + b"1," * 600_000 + b"1]").status_code == 413
        assert client.get("/healthz").status_code == 200


SMALL = {"role": "user", "content": "x"}
MANY: dict[str, tuple[str, dict[str, Any]]] = {
    "messages": (CHAT, {"messages": [SMALL] * 120_000}),
    "parts of a message": (
        CHAT,
        {"messages": [{**SMALL, "content": [{"type": "text", "text": "x"}] * 90_000}]},
    ),
    "tools": (CHAT, {**chat(), "tools": [{"type": "function", "function": {"name": "f"}}] * 40_000}),
    "fields": (CHAT, {**chat(), **{f"x{n}": 1 for n in range(200_000)}}),
    "items": ("/v1/responses", {"input": [SMALL] * 100_000}),
    "blocks": ("/v1/messages", {"messages": [SMALL] * 100_000, "max_tokens": 9}),
}


@pytest.mark.parametrize("what", MANY)
def test_a_body_of_very_many_objects_is_not_worked_on(
    live: Live, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Of 120,000 messages each cost little, and all together everybody seconds."""
    path, body = MANY[what]
    opened: list[object] = []
    real = live.system.gateway.open
    monkeypatch.setattr(live.system.gateway, "open", lambda *a, **o: (opened.append(a), real(*a, **o))[1])
    with live.client() as client:
        answer = client.post(path, json={"model": "scripted", **body})
    assert (answer.status_code, "objects" in answer.text) == (400, True)
    assert not opened


def test_a_conversation_as_long_as_they_come_is_read(live: Live) -> None:
    """Ten thousand messages: it is the context that they do not fit into."""
    with live.client() as client:
        answer = client.post(CHAT, json={"model": "scripted", "messages": [SMALL] * 10_000})
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_text_that_cannot_fit_is_not_even_tokenised(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer: Any = live.system.gateway.renderer.tokenizer  # type: ignore[union-attr]
    seen: list[int] = []
    real = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text, **o: (seen.append(len(text)), real(text, **o))[1])
    with live.client() as client:
        for body in (chat("x" * 2_000_000), chat(tools=[_tool("y" * 2_000_000)])):
            answer = client.post(CHAT, json=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert client.post(CHAT, json=chat()).status_code == 200
    assert max(seen) < 10_000


def post(live: Live, path: str, body: dict[str, Any]) -> None:
    with live.client() as client:
        client.post(path, json=body)


def _tool(description: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "description": description}}


@pytest.mark.parametrize("path", [CHAT, "/v1/messages/count_tokens"])
def test_others_are_answered_while_a_text_is_tokenised(
    live: Live, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The tokenizer waits until somebody else was answered; on the event loop that would never be."""
    tokenizer: Any = live.system.gateway.renderer.tokenizer  # type: ignore[union-attr]
    began, answered = threading.Event(), threading.Event()
    waited: list[bool] = []
    real = tokenizer.encode

    def encode(text: str, **options: Any) -> Any:
        began.set()
        waited.append(answered.wait(30))
        return real(text, **options)

    monkeypatch.setattr(tokenizer, "encode", encode)
    asking = threading.Thread(target=post, args=(live, path, chat(max_tokens=9)))
    asking.start()
    assert began.wait(30)
    with live.client() as client:
        assert client.get("/healthz").status_code == 200
    answered.set()
    asking.join(60)
    assert waited
    assert all(waited)


def test_others_are_answered_while_a_schema_is_read(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    began, answered = threading.Event(), threading.Event()
    waited: list[bool] = []

    def check(grammar: str) -> None:
        began.set()
        waited.append(answered.wait(30))

    monkeypatch.setattr(live.system.engine, "check_grammar", check)
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    asking = threading.Thread(target=post, args=(live, CHAT, chat(response_format=schema)))
    asking.start()
    assert began.wait(30)
    with live.client() as client:
        assert client.get("/healthz").status_code == 200
    answered.set()
    asking.join(60)
    assert waited == [True]


def test_a_full_server_refuses_before_it_works(
    make_live: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    live = make_live(max_running=1, max_waiting=0)
    tokenizer: Any = live.system.gateway.renderer.tokenizer  # type: ignore[union-attr]
    began, answered = threading.Event(), threading.Event()
    num_encoded: list[int] = []
    real = tokenizer.encode

    def encode(text: str, **options: Any) -> Any:
        num_encoded.append(1)
        began.set()
        answered.wait(30)
        return real(text, **options)

    monkeypatch.setattr(tokenizer, "encode", encode)
    asking = threading.Thread(target=post, args=(live, CHAT, chat()))
    asking.start()
    assert began.wait(30)
    with live.client() as client:
        assert [client.post(CHAT, json=chat()).status_code for _ in range(3)] == [429] * 3
    assert len(num_encoded) == 1
    answered.set()
    asking.join(60)
    with live.client() as client:
        assert json.loads(client.post(CHAT, json=chat()).text)["choices"]
