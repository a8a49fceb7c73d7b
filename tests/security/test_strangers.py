"""Names that lead here, wrong keys, names of former users, text that steers a terminal."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.commands.client import ServerClient
from openclaw_rl.serve.attempts import Attempts
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.testing import clean_environment, command
from openclaw_rl.text import printable
from tests.security.conftest import Live, chat

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:30000", "localhost.evil.example", "127.0.0.1.evil"]
)
def test_a_name_that_was_made_to_lead_here_is_refused_without_keys(
    make_live: Callable[..., Live], host: str
) -> None:
    live = make_live(auth=False)
    with httpx.Client(base_url=live.url, headers={"host": host}) as client:
        assert client.get("/v1/sessions").status_code == 403
        assert client.post(CHAT, json=chat()).status_code == 403
        guard = {"x-requested-with": "openclaw-rl"}
        assert client.post("/v1/login", json={"key": ""}, headers=guard).status_code == 403
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:30000", "[::1]:30000", "10.1.2.3", "box"]
)
def test_its_own_names_and_addresses_are_answered(make_live: Callable[..., Live], host: str) -> None:
    live = make_live(auth=False, allowed_hosts="box, other.example")
    with httpx.Client(base_url=live.url, headers={"host": host}) as client:
        assert client.post(CHAT, json=chat()).status_code == 200


def test_wrong_keys_are_not_tried_without_end(live: Live) -> None:
    with live.client() as known:
        assert known.get("/v1/models").status_code == 200
        statuses = [httpx.get(f"{live.url}/v1/models", headers={"x-api-key": f"sk-{i}"}) for i in range(30)]
        assert [answer.status_code for answer in statuses] == [401] * 20 + [429] * 10
        assert int(statuses[-1].headers["retry-after"]) > 0
        guard = {"x-requested-with": "openclaw-rl"}
        assert httpx.post(f"{live.url}/v1/login", json={"key": "sk-x"}, headers=guard).status_code == 429
        assert known.get("/v1/models").status_code == 200, "who was known before is let in"


def test_a_minute_later_keys_may_be_tried_again() -> None:
    now = 0.0
    attempts = Attempts(lambda: now)
    for _ in range(20):
        assert attempts.wait_s("a", "k") == 0
        attempts.failed("a")
    assert attempts.wait_s("a", "k") > 0
    assert attempts.wait_s("b", "k") == 0, "another address"
    attempts.passed("right")
    assert attempts.wait_s("a", "right") == 0
    now = 61.0
    assert attempts.wait_s("a", "k") == 0


def test_a_former_users_name_is_not_given_to_somebody_else(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "keys.json")
    ring.add("ann")
    ring.remove("ann")
    with pytest.raises(ValueError, match="was somebody's before"):
        ring.add("ann")
    with pytest.raises(ValueError, match="was somebody's before"):
        KeyRing(tmp_path / "keys.json").add("ann")
    assert ring.add("ann", same_person=True).startswith("sk-")
    said = subprocess.run(
        [command(), "keys", "remove", "ann"], env=clean_environment(tmp_path), capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    refused = subprocess.run(
        [command(), "keys", "add", "ann"], env=clean_environment(tmp_path), capture_output=True, text=True
    )
    assert (refused.returncode, "--same-person" in refused.stderr) == (2, True)


ESCAPES = "\x1b]52;c;ZXZpbA==\x07 \x1b]0;title\x07 \x1b[2J \x9b31m \x7f \r \u202e"


def test_other_peoples_text_cannot_steer_the_owners_terminal(live: Live) -> None:
    key = live.system.keys.add("ann")
    with live.client(key) as client:
        for path, body in ((CHAT, chat(ESCAPES, session_id="s1", model="scripted")),):
            assert client.post(path, json=body).status_code == 200
    live.system.engine.say(ESCAPES)  # type: ignore[attr-defined]
    (live.system.config.home / "serve.json").write_text(json.dumps({"url": live.url, "pid": 1}))
    with ServerClient(live.system.config) as server:
        seen = [
            server.get("/v1/sessions"),
            server.get("/v1/sessions/s1", text="true"),
            server.get("/v1/status"),
        ]
        with server.stream(CHAT, {**chat(), "stream": True}) as (_, events):
            seen += list(events)
    out = io.StringIO()
    print(*map(_texts, seen), file=out)
    assert not set(out.getvalue()) & set("\x1b\x07\x9b\x7f\r\u202e")
    assert "\\x1b]52" in out.getvalue(), "shown, not obeyed"


def _texts(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(map(_texts, [*value, *value.values()]))
    return " ".join(map(_texts, value)) if isinstance(value, list) else str(value)


@pytest.mark.parametrize("text", ["plain", "two\nlines\tand a tab", "äöü 会 👍", ""])
def test_honest_text_is_shown_as_it_is(text: str) -> None:
    assert printable({"a": [text]}) == {"a": [text]}


@pytest.mark.parametrize("session_id", ["a/b", "/", "a/close", "../x", "a//b/"])
def test_sessions_with_slashes_can_be_viewed(live: Live, session_id: str) -> None:
    from urllib.parse import quote

    with live.client() as client:
        answer = client.post(CHAT, json=chat(session_id=session_id))
        path = f"/v1/sessions/{quote(session_id, safe='')}"
        shown = client.get(path)
        assert (shown.status_code, shown.json().get("id")) == (200, session_id)
        assert shown.json()["turns"][0]["id"] == answer.json()["id"]
        assert client.post(f"{path}/exclude").json()["excluded"] is True
        assert client.post(f"{path}/include").json()["excluded"] is False
        assert client.post(f"{path}/close").json() == {"id": session_id, "closed": True}


def test_fields_that_nobody_reads_are_stored_up_to_a_limit(live: Live) -> None:
    more = {"note": "kept", "big": "x" * 1_000_000, "metadata": {"session_id": "s9"}}
    with live.client() as client:
        answer = client.post(CHAT, json=chat(temperature=0.5, **more))
    turn = live.system.ledgers.serve.load_turn(answer.json()["id"])
    assert turn is not None
    assert (turn.params["note"], turn.params["temperature"]) == ("kept", 0.5)
    assert len(json.dumps(turn.params)) < 70_000


def test_one_key_sees_nothing_of_the_others_counts(live: Live) -> None:
    key = live.system.keys.add("ann")
    with live.client() as owner:
        owner.post(CHAT, json=chat())
    with live.client(key) as client:
        assert client.get("/metrics").status_code == 403
        assert client.get("/v1/sessions").json()["data"] == []
        funnel = client.get("/v1/status").json()["funnel"]
        assert not funnel or funnel["turns"] == 0
