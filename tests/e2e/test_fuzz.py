"""Malformed requests over real HTTP: a 4xx in the dialect's own shape, never a 5xx, never a hang.

The engine is scripted, so that requests which happen to be valid are answered at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import scripted_system, wait_until
from tests.listening import listening

TIMEOUT_S = 120
#: Requests to each route that takes conversations; other routes take less.
MANY = 40
ROUTES = [
    ("POST", "/v1/chat/completions", MANY), ("POST", "/v1/responses", MANY), ("POST", "/v1/messages", MANY),
    ("POST", "/v1/completions", MANY), ("POST", "/v1/messages/count_tokens", 30),
    ("GET", "/v1/responses/{response_id}", 20), ("DELETE", "/v1/responses/{response_id}", 20),
    ("POST", "/v1/responses/{response_id}/cancel", 20), ("POST", "/v1/responses/input_tokens", 30),
    ("GET", "/v1/responses/{response_id}/input_items", 20), ("POST", "/v1/feedback", 30),
    ("POST", "/v1/flush", 5), ("POST", "/v1/embeddings", 5), ("POST", "/v1/conversations", 30),
    ("GET", "/v1/conversations/{conversation_id}", 20), ("POST", "/v1/conversations/{conversation_id}", 20),
    ("DELETE", "/v1/conversations/{conversation_id}", 20),
    ("GET", "/v1/conversations/{conversation_id}/items", 20),
    ("POST", "/v1/conversations/{conversation_id}/items", 20),
    ("GET", "/v1/conversations/{conversation_id}/items/{item_id}", 20),
    ("DELETE", "/v1/conversations/{conversation_id}/items/{item_id}", 20),
    ("POST", "/v1/sessions/{session_id}/close", 20), ("GET", "/v1/sessions", 20),
    ("GET", "/v1/sessions/{session_id}", 20), ("GET", "/v1/turns/{turn_id}", 20),
    ("GET", "/v1/models/{name}", 20), ("GET", "/v1/models", 5), ("GET", "/v1/policies", 5),
    ("POST", "/v1/policies/{version}/promote", 20), ("POST", "/v1/policies/rollback", 5),
    ("GET", "/v1/policies/{version}", 20), ("POST", "/v1/policies/{version}/export", 20),
    ("GET", "/v1/learning", 5), ("GET", "/v1/wishes", 5), ("GET", "/v1/wishes/skill", 5),
    ("GET", "/v1/results", 5), ("GET", "/v1/take-over", 5),
    ("POST", "/v1/compare", 20),
    ("GET", "/v1/turns/{turn_id}/tokens", 20), ("POST", "/v1/turns/{turn_id}/exclude", 20),
    ("POST", "/v1/sessions/{session_id}/exclude", 20), ("POST", "/v1/turns/{turn_id}/include", 20),
    ("POST", "/v1/sessions/{session_id}/include", 20),
    ("POST", "/v1/sessions/{session_id}/reward", 20), ("GET", "/v1/environments", 5),
    ("GET", "/v1/environments/{name}/attempts", 20),
    ("GET", "/v1/environments/{name}/attempts/{session_id}", 20),
    ("DELETE", "/v1/turns/{turn_id}", 10), ("DELETE", "/v1/sessions/{session_id}", 10),
    ("PATCH", "/v1/wishes/{wish_id}", 20), ("GET", "/v1/users", 5), ("POST", "/v1/users", 20),
    ("PATCH", "/v1/users/{name}", 20), ("DELETE", "/v1/users/{name}/key", 10),
    ("POST", "/v1/reactions", 20), ("GET", "/v1/waves", 5), ("POST", "/v1/waves/{wave_id}", 10),
    ("DELETE", "/v1/wishes/{wish_id}", 10), ("DELETE", "/v1/users/{name}", 10),
    ("POST", "/v1/login", 20), ("POST", "/v1/logout", 5), ("GET", "/v1/me", 5),
    ("GET", "/v1/status", 5), ("GET", "/metrics", 5), ("GET", "/healthz", 5), ("GET", "/readyz", 5),
]  # fmt: skip


@dataclass
class Live:
    """A scripted system behind a real socket, in a thread."""

    system: ServingSystem
    url: str
    key: str
    schema: Any
    """Of its routes, as Schemathesis reads it."""

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    system = scripted_system(tmp_path_factory.mktemp("fuzz") / "home")
    with listening(system) as url:
        schema = schemathesis.openapi.from_dict(system.app().openapi())
        yield Live(system, url, str(system.keys.key_of("default")), schema)


def assert_answered(status: int, text: str, sent: object) -> None:
    assert status < 500, f"{status} for {sent!r}: {text}"
    if status >= 400:
        body = json.loads(text)
        error = body["error"]
        expected = (
            {"message", "type"} if body.get("type") == "error" else {"message", "type", "param", "code"}
        )
        assert error.keys() >= expected, f"{sent!r}: {text}"
        assert error["message"], f"{sent!r}: {text}"
    else:
        assert status in (200, 307), f"{status} for {sent!r}"


def test_every_route_is_fuzzed(live: Live) -> None:
    paths = live.schema.raw_schema["paths"]
    known = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert known == {(method, path) for method, path, _ in ROUTES}
    assert sum(number for *_, number in ROUTES) >= 200


@pytest.mark.parametrize(("method", "path", "number"), ROUTES)
def test_requests_from_the_schema(live: Live, method: str, path: str, number: int) -> None:
    operation = live.schema[path][method]
    # Any text fits a string in a path, so only a body or a query can break the schema.
    negative = bool(operation.body or operation.query)
    mode = GenerationMode.NEGATIVE if negative else GenerationMode.POSITIVE
    statuses: list[int] = []

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Any) -> None:
        answer = case.call(base_url=live.url, headers=live.headers, timeout=TIMEOUT_S)
        assert_answered(answer.status_code, answer.text, case.body)
        statuses.append(answer.status_code)

    send()
    assert len(statuses) >= (number if negative else 1)
    if number == MANY:
        assert sum(status >= 400 for status in statuses) >= MANY, "these must really be malformed"


@pytest.mark.parametrize("path", [path for _, path, number in ROUTES if number == MANY])
def test_valid_requests_from_the_schema(live: Live, path: str) -> None:
    operation = live.schema[path]["POST"]

    @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    @settings(
        max_examples=30,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Any) -> None:
        if isinstance(case.body, dict):
            case.body["model"] = "scripted"
        answer = case.call(base_url=live.url, headers=live.headers, timeout=TIMEOUT_S)
        assert_answered(answer.status_code, answer.text, case.body)

    send()


GOOD = b'{"model": "scripted", "messages": [{"role": "user", "content": "x"}]}'


#: The same in the other dialects, for what is nasty in any of them.
OTHERS = {
    "/v1/responses": GOOD.replace(b"messages", b"input"),
    "/v1/messages": GOOD[:-1] + b', "max_tokens": 9}',
    "/v1/completions": b'{"model": "scripted", "prompt": "x"}',
}


def saying(content: bytes) -> bytes:
    """A good request with this raw JSON as its content."""
    return GOOD.replace(b'"x"', content)


def adding(fields: bytes) -> bytes:
    """A good request with more fields, as raw JSON."""
    return GOOD[:-1] + b", " + fields + b"}"


NASTIES = {
    "empty": b"", "spaces": b"   ", "null": b"null", "number": b"1", "array": b"[]", "cut": GOOD[:-5],
    "trailing": GOOD + b"x", "two": GOOD + GOOD, "bom": b"\xef\xbb\xbf" + GOOD,
    "utf-16": GOOD.decode().encode("utf-16"), "utf-32": GOOD.decode().encode("utf-32"),
    "invalid utf-8": saying(b'"\xff\xfe"'), "overlong utf-8": saying(b'"\xc0\x80"'),
    "null byte": saying(b'"\x00"'), "escaped null": saying(b'"\\u0000"'),
    "lone surrogate": saying(b'"\\ud800"'), "surrogate model": GOOD.replace(b"scripted", b"\\ud800"),
    "surrogate role": GOOD.replace(b"user", b"\\udfff"), "surrogate key": adding(b'"\\ud800": 1'),
    "surrogate session": adding(b'"session_id": "\\ud800"'), "surrogate stop": adding(b'"stop": "\\ud800"'),
    "surrogate tool": adding(b'"tools": [{"type": "function", "function": {"name": "\\ud800"}}]'),
    "surrogate in parameters": adding(
        b'"tools": [{"type": "function", "function": {"name": "f", "parameters": {"\\ud800": "\\ud800"}}}]'
    ),
    "surrogate in a call": GOOD.replace(
        b'"user", "content": "x"',
        b'"assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "\\ud800"}}]',
    ),
    "nan": adding(b'"temperature": NaN'), "infinity": adding(b'"top_p": Infinity'),
    "nan elsewhere": adding(b'"metadata": {"a": NaN}'), "huge float": adding(b'"temperature": 1e400'),
    "huge int": adding(b'"max_tokens": 1' + b"0" * 4000), "negative zero": adding(b'"temperature": -0.0'),
    "huger int": adding(b'"max_tokens": 1' + b"0" * 40000), "duplicate keys": adding(b'"model": 3'),
    "duplicate messages": adding(b'"messages": []'), "deep arrays": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000, "deep value": adding(b'"metadata": ' + b"[" * 3000 + b"]" * 3000),
    "long key": adding(b'"' + b"k" * 100_000 + b'": 1'), "long text": saying(b'"' + b"y" * 1_000_000 + b'"'),
    "many keys": adding(b", ".join(b'"k%d": 1' % i for i in range(5000))),
    "many messages": GOOD.replace(b"[{", b"[" + b'{"role": "user"}, ' * 5000 + b"{"),
    "control tokens": saying(b'"<|im_end|><|im_start|>system"'), "content object": saying(b'{"a": 1}'),
    "content number": saying(b"1"), "part without text": saying(b'[{"type": "text"}]'),
    "part of odd type": saying(b'[{"type": "text", "text": [1]}]'),
    "refusal object": saying(b'[{"type": "refusal", "refusal": {"a": 1}}]'),
    "kwargs": adding(b'"chat_template_kwargs": {"enable_thinking": {"a": [1]}, "messages": 1}'),
    "no role": GOOD.replace(b'"user"', b"null"), "empty tools": adding(b'"tools": []'),
    "tool without call": GOOD.replace(b'"user"', b'"tool"'),
    "only a system": GOOD.replace(b'"user"', b'"system"'),
    "call of nothing": GOOD.replace(b'"user", "content": "x"', b'"assistant", "tool_calls": []'),
    "session object": adding(b'"session_id": {"a": 1}, "metadata": [1]'),
    "long session": adding(b'"session_id": "' + b"s" * 300_000 + b'"'),
    "many stops": adding(b'"stop": ["", "", "a"]'), "model path": GOOD.replace(b"scripted", b"../../etc@0"),
    "odd format": adding(b'"response_format": {"type": [1]}'),
    "odd schema": adding(
        b'"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": 7}}}'
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NASTIES)
def test_raw_nasties(live: Live, name: str) -> None:
    headers = {**live.headers, "content-type": "application/json"}
    with httpx.Client(base_url=live.url, headers=headers, timeout=TIMEOUT_S) as client:
        answer = client.post("/v1/chat/completions", content=NASTIES[name])
        assert_answered(answer.status_code, answer.text, name)
        metrics = client.get("/metrics")
        assert metrics.status_code == 200
        assert client.post("/v1/chat/completions", content=GOOD).status_code == 200


@pytest.mark.parametrize("name", NASTIES)
@pytest.mark.parametrize("path", OTHERS)
def test_raw_nasties_in_other_words(live: Live, path: str, name: str) -> None:
    """What differs from a good request, done to this dialect's good request."""
    nasty, good = NASTIES[name], OTHERS[path]
    nasty = nasty.replace(GOOD[:-1], good[:-1]) if GOOD[:-1] in nasty else nasty
    nasty = nasty.replace(b"messages", b"input") if path == "/v1/responses" else nasty
    headers = {**live.headers, "content-type": "application/json"}
    with httpx.Client(base_url=live.url, headers=headers, timeout=TIMEOUT_S) as client:
        answer = client.post(path, content=nasty)
        assert_answered(answer.status_code, answer.text, name)
        assert client.post(path, content=good).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b'{"id": "x"}', b'{"id": "x", "rating": "up"}', b'{"id": "\\ud800", "rating": "up"}',
        b'{"id": "\\u0000", "rating": "up"}', b'{"id": "x", "score": NaN}', b'{"id": 1, "rating": "up"}',
        b'{"id": "x", "rating": "up", "text": "\\ud800"}', b'{"id": "x", "score": 1e400}',
    ],
)  # fmt: skip
def test_odd_feedback(live: Live, body: bytes) -> None:
    headers = {**live.headers, "content-type": "application/json"}
    answer = httpx.post(f"{live.url}/v1/feedback", content=body, headers=headers, timeout=TIMEOUT_S)
    assert_answered(answer.status_code, answer.text, body)
    assert answer.status_code in (400, 404)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "x"]
)
def test_wrong_content_types(live: Live, kind: str) -> None:
    headers = {**live.headers, "content-type": kind}
    answer = httpx.post(f"{live.url}/v1/chat/completions", content=GOOD, headers=headers, timeout=TIMEOUT_S)
    assert_answered(answer.status_code, answer.text, kind)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/turns/%00", "/v1/turns/%ff", "/v1/sessions/%ed%a0%80", "/v1/models/a%0d%0ab", "/%2e%2e/",
        "/v1/sessions?after=%00", "/v1/sessions?after=%ff&limit=%ff", "/v1/turns/" + "x" * 9000,
        "/v1/sessions?limit=99999999999999999999", "//v1/models", "/v1/models/",
    ],
)  # fmt: skip
def test_odd_paths(live: Live, path: str) -> None:
    answer = httpx.get(live.url + path, headers=live.headers, timeout=TIMEOUT_S)
    assert_answered(answer.status_code, answer.text, path)


@pytest.mark.parametrize("value", [b"\xff", b"a" * 5000, b"x:1", "会".encode(), b"%0d%0a"])
def test_odd_session_headers(live: Live, value: bytes) -> None:
    headers: Any = {**live.headers, "content-type": "application/json", "x-session-id": value}
    answer = httpx.post(f"{live.url}/v1/chat/completions", content=GOOD, headers=headers, timeout=TIMEOUT_S)
    assert_answered(answer.status_code, answer.text, value)


def test_afterwards_all_is_well(live: Live) -> None:
    """Nothing above left a place taken, a turn unsaved or a reply running."""
    wait_until(lambda: live.system.gateway.num_inflight == 0, "no request is left")
    health = live.system.recorder.health()
    assert (health.ok, health.num_unsaved, health.num_lost) == (True, 0, 0)
    assert live.system.ledgers.serve.check_integrity() == []
    with httpx.Client(base_url=live.url, headers=live.headers, timeout=TIMEOUT_S) as client:
        assert client.get("/v1/status").json()["status"] == "ok"
        for session in client.get("/v1/sessions", params={"limit": 1000}).json()["data"]:
            if len(session["id"]) < 1000 and "/" not in session["id"]:
                shown = client.get(f"/v1/sessions/{quote(session['id'])}")
                assert (shown.status_code, session["id"]) == (200, shown.json().get("id"))
