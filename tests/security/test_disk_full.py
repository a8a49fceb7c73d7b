"""On a full disk conversations go on, and whatever a person decides is either stored or refused."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from openclaw_rl.testing import wait_until
from tests.security.conftest import Live, chat

CHAT = "/v1/chat/completions"


@contextmanager
def full_disk() -> Iterator[None]:
    """The kernel refuses to let files grow, as on a full disk."""
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/feedback", {"rating": "down"}),
        ("/v1/turns/{id}/exclude", None),
        ("/v1/sessions/{session}/exclude", None),
        ("/v1/sessions/{session}/close", None),
        ("/v1/flush", None),
    ],
)
def test_what_could_not_be_stored_is_not_acknowledged(
    live: Live, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, str] | None
) -> None:
    monkeypatch.setattr(live.system.recorder, "_limit", 2)
    with live.client() as client:
        answer = client.post(CHAT, json=chat())
        turn_id, session_id = answer.json()["id"], answer.headers["x-session-id"]
        wait_until(lambda: client.get(f"/v1/turns/{turn_id}").status_code == 200, "the turn is stored")
        sent = {"id": turn_id, **body} if body else None
        with full_disk():
            assert client.post(CHAT, json=chat("again")).status_code == 200, "replies go on"
            refused = client.post(path.format(id=turn_id, session=session_id), json=sent)
            assert refused.status_code == 503, refused.text
            assert refused.json()["error"]["code"] == "not_stored"
            assert refused.headers["retry-after"]
            assert client.get("/readyz").json()["status"] == "degraded"
        wait_until(
            lambda: client.get("/readyz").json()["status"] == "ok", "the ledger can be written again", 60
        )
        stored = client.post(path.format(id=turn_id, session=session_id), json=sent)
        assert stored.status_code == 200, stored.text
