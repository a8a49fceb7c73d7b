"""Clients that leave out the beginning of a history: two chats are never joined by what is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from openclaw_rl.capture.normalise import reply_keys, said_key
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.capture.sessions import Found, SessionFinder
from openclaw_rl.types import Message

from .conftest import make_turn


class Client:
    """Sends the last ``window`` messages of each of its chats."""

    def __init__(self, ledger: ServeLedger, window: int, restarts: bool) -> None:
        self.ledger, self.window, self.restarts = ledger, window, restarts
        self.finder = SessionFinder(ledger)
        self.chats: dict[str, list[Message]] = {}
        self.number = 0

    def say(self, chat: str, text: str, answer: str, **headers: Any) -> tuple[Found, str]:
        if self.restarts:
            self.finder = SessionFinder(self.ledger)
        history = self.chats.setdefault(chat, [])
        history.append({"role": "user", "content": text})
        sent = history[-self.window :]
        found = self.finder.place("alice", sent, headers, {})
        self.number += 1
        turn = make_turn(f"t{self.number}", found.session_id, messages=sent, text=answer)
        keys = reply_keys("alice", sent, turn.reply)
        said = said_key("alice", found.session_id, turn.reply)
        turn = replace(turn, keys={**keys, **self.finder.shared(keys, found.session_id), "said": said or ""})
        self.ledger.append([turn])
        self.finder.remember(turn.keys, turn.id, turn.session_id)
        history.append({"role": "assistant", "content": answer})
        return found, turn.id


@pytest.fixture(params=[False, True], ids=["from memory", "from the ledger"])
def restarts(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("window", [2, 3])
def test_chats_that_share_their_last_words_are_not_joined(
    serve_ledger: ServeLedger, window: int, restarts: bool
) -> None:
    client = Client(serve_ledger, window, restarts)
    for chat in ("cows", "peru"):
        client.say(chat, f"Let us talk about {chat}.", f"Fine, {chat} it is.")
        client.say(chat, "yes", "OK.")
    first, _ = client.say("cows", "go on", "Cows eat grass.")
    second, _ = client.say("peru", "go on", "Its capital is Lima.")
    assert first.session_id != second.session_id
    assert first.continues is None or first.continues == "t2"
    assert second.continues is None or second.continues == "t4"


@pytest.mark.parametrize("window", [2, 3, 5])
def test_a_cut_history_goes_on_where_its_words_are_its_own(
    serve_ledger: ServeLedger, window: int, restarts: bool
) -> None:
    client = Client(serve_ledger, window, restarts)
    placed = [client.say("cows", f"question {n}", f"answer {n}") for n in range(6)]
    other = [client.say("peru", f"other {n}", f"reply {n}") for n in range(6)]
    for chat in (placed, other):
        assert len({found.session_id for found, _ in chat}) == 1
        assert [found.continues for found, _ in chat[1:]] == [turn for _, turn in chat[:-1]]
    assert placed[0][0].session_id != other[0][0].session_id


def test_what_else_is_left_of_a_history_tells_whose_it_is(serve_ledger: ServeLedger, restarts: bool) -> None:
    client = Client(serve_ledger, 5, restarts)
    turns = {}
    for chat in ("cows", "peru"):
        client.say(chat, "Hello.", f"Welcome to {chat}.")
        client.say(chat, f"Let us talk about {chat}.", f"Fine, {chat} it is.")
        turns[chat] = client.say(chat, "yes", "OK.")
    for chat in ("cows", "peru"):
        found, _ = client.say(chat, "go on", "More.")
        assert (found.session_id, found.continues) == (turns[chat][0].session_id, turns[chat][1])


def test_a_stated_id_needs_no_words(serve_ledger: ServeLedger, restarts: bool) -> None:
    client = Client(serve_ledger, 2, restarts)
    for chat in ("cows", "peru"):
        client.say(chat, "yes", "OK.", **{"x-session-id": chat})
    found, _ = client.say("cows", "go on", "Grass.", **{"x-session-id": "cows"})
    assert (found.session_id, found.continues) == ("cows", "t1")
