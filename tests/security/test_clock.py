"""The machine's clock is set while the server runs, forwards and back: nobody is locked out."""

from __future__ import annotations

import time

import httpx
import pytest

from openclaw_rl.serve.signin import GUARD, GUARD_VALUE
from tests.security.conftest import Live, chat

HOUR_S, DAY_S = 3600.0, 86400.0


class Clock:
    def __init__(self) -> None:
        self.ahead_s, self._real = 0.0, time.time

    def __call__(self) -> float:
        return self._real() + self.ahead_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of day in this process, and so in the server."""
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)
    return clock


@pytest.mark.parametrize("jump_s", [-DAY_S, -HOUR_S, HOUR_S, 40 * DAY_S])
def test_a_conversation_goes_on(clock: Clock, live: Live, jump_s: float) -> None:
    with live.client() as client:
        first = client.post("/v1/chat/completions", json=chat("Hi"))
        clock.ahead_s = jump_s
        reply = first.json()["choices"][0]["message"]
        said = [{"role": "user", "content": "Hi"}, reply, {"role": "user", "content": "Go on"}]
        second = client.post("/v1/chat/completions", json={"model": "scripted", "messages": said})
        assert second.headers["x-session-id"] == first.headers["x-session-id"]
        rating = {"id": first.json()["id"], "rating": "up"}
        assert client.post("/v1/feedback", json=rating).status_code == 200
        [session] = client.get("/v1/sessions").json()["data"]
        assert session["id"] == first.headers["x-session-id"]
        assert client.get(f"/v1/turns/{second.json()['id']}").status_code == 200


def test_a_clock_set_back_does_not_sign_the_owner_out(clock: Clock, live: Live) -> None:
    with httpx.Client(base_url=live.url, headers={GUARD: GUARD_VALUE}, timeout=60) as browser:
        signed_in = browser.post("/v1/login", json={"key": live.key})
        assert signed_in.status_code == 200
        for clock.ahead_s in (-DAY_S, HOUR_S):
            assert browser.get("/v1/status").status_code == 200
