"""Conversations and background responses in both kinds of database."""

from __future__ import annotations

import time

import pytest

from openclaw_rl.capture import background
from openclaw_rl.capture.background import BackgroundLedger, erase_ended
from openclaw_rl.capture.conversations import (
    ConversationLedger,
    conversations_of,
    erase_from_conversations,
    erase_unused,
    export_conversations,
)
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.types import RUNNING, Json, Unfinished


def item(name: str, text: str = "hello") -> Json:
    return {"id": name, "type": "message", "role": "user", "content": text}


@pytest.fixture
def store(serve_ledger: ServeLedger) -> ConversationLedger:
    return ConversationLedger(serve_ledger, lambda value: value, lambda user: False)


def ids(store: ConversationLedger, conversation_id: str = "c1") -> list[str]:
    return [found["id"] for found in store.items(conversation_id)]


def test_made_changed_and_deleted(store: ConversationLedger, serve_ledger: ServeLedger) -> None:
    store.create("c1", "ann", {"topic": "tea"}, [item("a"), item("b", "ünï\ud800code\x00")])
    shown = store.find("c1", "ann")
    assert shown is not None
    assert (shown["id"], shown["metadata"]) == ("c1", {"topic": "tea"})
    assert store.find("c1", "ben") is None
    assert ids(store) == ["a", "b"]
    store.update("c1", {"topic": "coffee"})
    assert store.add_items("c1", [item("c"), item("d")], "t1")
    assert store.delete_item("c1", "a")
    assert not store.delete_item("c1", "a")
    [exported] = export_conversations(serve_ledger, "ann")
    assert exported["metadata"] == {"topic": "coffee"}
    assert [one["id"] for one in exported["items"]] == ["b", "c", "d"]
    store.delete("c1")
    assert store.find("c1", "ann") is None
    assert store.items("c1") == []
    assert not store.add_items("c1", [item("e")])
    assert conversations_of(serve_ledger, "ann") == []


def test_what_was_said_in_a_turn_goes_with_it(store: ConversationLedger, serve_ledger: ServeLedger) -> None:
    store.create("c1", "ann", {}, [])
    store.add_items("c1", [item("a1"), item("a2")], "t1")
    store.add_items("c1", [item("added")])
    store.add_items("c1", [item("b1"), item("b2")], "t2")
    with serve_ledger.writing() as connection:
        erase_from_conversations(connection, ["t2"], [])
    assert ids(store) == ["a1", "a2"]
    with serve_ledger.writing() as connection:
        erase_from_conversations(connection, [], ["c1"])
    assert store.find("c1", "ann") is None


def test_one_that_nobody_used_goes_after_a_while(
    store: ConversationLedger, serve_ledger: ServeLedger
) -> None:
    store.create("c1", "ann", {}, [item("a")])
    for before, left in ((time.time() - 3600, ["c1"]), (time.time() + 3600, [])):
        with serve_ledger.writing() as connection:
            erase_unused(connection, before)
        assert conversations_of(serve_ledger, "ann") == left


def test_a_background_response_from_its_start_to_its_end(
    serve_ledger: ServeLedger, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BackgroundLedger(serve_ledger)
    store.begin("r1", "ann", "default", 5.0)
    # With a database of its own, a process knows itself what it runs.
    is_shared = backend == "postgresql"
    assert store.find("r1", "ann") == Unfinished("default", 5.0, RUNNING, None, is_shared)
    assert store.find("r1", "ben") is None
    monkeypatch.setattr(background, "_ALIVE_S", -1.0)  # nobody has touched it for that long
    assert store.find("r1", "ann") == Unfinished("default", 5.0, RUNNING, None, False)
    assert store.touch("r1")
    store.stop("r1", "cancelled", "by its owner")
    store.stop("r1", "failed", "later")
    assert not store.touch("r1")
    assert store.find("r1", "ann") == Unfinished("default", 5.0, "cancelled", "by its owner", False)
    with serve_ledger.writing() as connection:
        erase_ended(connection, 5.0)
    assert store.find("r1", "ann") is not None
    with serve_ledger.writing() as connection:
        erase_ended(connection, 6.0)
    assert store.find("r1", "ann") is None
