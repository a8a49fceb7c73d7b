"""Conversations are recognised by what they mean, however a client re-sends them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.capture.normalise import fold_conversation, meaning, reply_keys
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.capture.sessions import Found, SessionFinder, explicit_session
from openclaw_rl.types import Message

from .conftest import make_turn

EPHEMERAL = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\n{}\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str | None, *calls: tuple[str, str]) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{i}", "name": name, "arguments": arguments}
            for i, (name, arguments) in enumerate(calls)
        ]
    return message


def tool(text: str) -> Message:
    return {"role": "tool", "tool_call_id": "call_0", "content": text}


# --- keys ------------------------------------------------------------------------------------

words = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=8)
sentences = st.lists(words, min_size=1, max_size=6).map(" ".join)
arguments = st.dictionaries(
    words, words | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none(), max_size=3
)
exchanges = st.tuples(
    sentences, sentences, st.none() | st.tuples(words, arguments), st.none() | sentences
)  # fmt: skip


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": "You are helpful."}]
    for question, answer, call, result in draw(st.lists(exchanges, min_size=1, max_size=4)):
        messages.append(user(question))
        if call is not None:
            messages.append(assistant(None, (call[0], json.dumps(call[1]))))
            messages.append(tool(result or "done"))
        messages.append(assistant(answer))
    return messages


@st.composite
def resent(draw: st.DrawFn, messages: list[Message]) -> list[Message]:
    """The same conversation as OpenClaw may send it the next time."""
    result: list[Message] = []
    for message in messages:
        message = dict(message)
        text = message["content"]
        if message["role"] == "system":
            message["content"] = draw(sentences)
        if text is not None and message["role"] != "system":
            text = draw(st.sampled_from(["", " ", "\n\n"])) + text.replace(
                " ", draw(st.sampled_from([" ", "\n"]))
            )
        if message["role"] == "user":
            stamp = draw(st.sampled_from(["", "[Mon 2026-09-07 10:11 UTC] ", "[2026-09-07T10:11:12Z] "]))
            runtime = draw(st.sampled_from(["", "\nRuntime: agent=main | session=s | sessionId=1-2-3"]))
            message["content"] = stamp + str(text) + runtime
        elif message["role"] == "assistant":
            thinking = draw(st.sampled_from(["", "<think>hm, let me see\n\nyes</think>\n"]))
            message["content"] = text if text is None else thinking + text
            message["reasoning"] = draw(sentences)
            if draw(st.booleans()) and text is None:
                message["content"] = ""
        elif message["role"] == "tool":
            message["content"], message["tool_call_id"] = text, draw(words)
        if "tool_calls" in message:
            call = message["tool_calls"][0]
            rewritten = dict(reversed(json.loads(call["arguments"]).items()))
            separators = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
            message["tool_calls"] = [
                {**call, "id": draw(words), "arguments": json.dumps(rewritten, separators=separators)}
            ]
        result.append(message)
        if draw(st.booleans()):
            result.append(user(EPHEMERAL.format(draw(sentences))))
    return result


@given(st.data())
def test_what_clients_rewrite_does_not_change_the_keys(data: st.DataObject) -> None:
    messages = data.draw(conversations())
    assert _keys(data.draw(resent(messages))) == _keys(messages)


@pytest.mark.parametrize("tag", ["system-reminder", "environment_context"])
def test_what_coding_agents_put_beside_the_words_is_not_what_was_said(tag: str) -> None:
    injected = f"<{tag}>\nToday is Monday.\n</{tag}>"
    assert meaning(user(f"{injected}\n{injected}\nFix it")) == meaning(user("Fix it"))
    assert not meaning(user(injected))
    assert meaning(user(f"What does <{tag}> mean?")) != meaning(user("What does mean?"))


def _keys(messages: list[Message]) -> list[dict[str, str]]:
    return [keys for _, keys in fold_conversation("alice", messages).replies]


@given(conversations(), st.sampled_from([("alice", "bob"), ("a", ""), ("ab", "a"), ("\ud800", "x")]))
def test_users_never_share_a_key(messages: list[Message], users: tuple[str, str]) -> None:
    ours, theirs = (
        {key for _, keys in fold_conversation(user, messages).replies for key in keys.values()}
        for user in users
    )
    assert ours
    assert ours.isdisjoint(theirs)


@given(conversations(), conversations())
def test_conversations_of_different_meaning_have_different_keys(a: list[Message], b: list[Message]) -> None:
    same = [meaning(m) for m in a[1:]] == [meaning(m) for m in b[1:]]
    assert (_keys(a)[0]["chain"] == _keys(b)[0]["chain"]) is same


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ('{"a": 1.0, "b": "x"}', '{"b":"x","a":1}'),
        ('{"a": 1e3}', '{"a":1000}'),
        ('{"a": -0.0}', '{"a":0}'),
        ('{"id": 12345678901234567890}', '{"id":12345678901234567000}'),
        ('{"a": "\\u00e9"}', '{"a":"é"}'),
        ("{broken  json", "{broken json"),
    ],
)
def test_arguments_as_javascript_writes_them_again(ours: str, theirs: str) -> None:
    assert meaning(assistant(None, ("f", ours))) == meaning(assistant("", ("f", theirs)))


def test_arguments_that_differ_stay_different() -> None:
    folded = {meaning(assistant(None, ("f", a))) for a in ('{"a":1}', '{"a":"1"}', '{"a":true}', "{}", "[]")}
    assert len(folded) == 5


def test_a_reply_without_meaning_has_no_key_of_its_own() -> None:
    keys = reply_keys("alice", [user("Hi"), assistant("Hello")], assistant("<think>hm</think>"))
    assert keys.keys() == {"asked", "context"}


@given(conversations())
def test_a_turn_is_found_under_the_keys_it_is_stored_with(messages: list[Message]) -> None:
    stored = reply_keys("alice", messages[:-1], messages[-1])
    asked = fold_conversation("alice", [*messages, user("and then?")]).replies
    assert asked[0][1] == {kind: stored[kind] for kind in ("chain", "pair")}


# --- placing ---------------------------------------------------------------------------------


class Chats:
    """An agent's side of several conversations, and the server that places them."""

    def __init__(self, serve_ledger: ServeLedger) -> None:
        self.serve_ledger = serve_ledger
        self.finder = SessionFinder(serve_ledger)
        self.number = 0

    def restart(self) -> None:
        self.finder = SessionFinder(self.serve_ledger)

    def ask(
        self, history: list[Message], text: str, answer: str, who: str = "alice", **stated: Any
    ) -> tuple[Found, str]:
        """Send the history plus one message; the history then has both. Returns the turn's id too."""
        history.append(user(text))
        placement = self.finder.place(who, history, stated, {})
        self.number += 1
        turn = make_turn(
            f"t{self.number}", placement.session_id, user=who, messages=list(history), text=answer
        )
        turn = replace(turn, keys=reply_keys(who, history, turn.reply), continues=placement.continues)
        self.serve_ledger.append([turn])
        self.finder.remember(turn.keys, turn.id, turn.session_id)
        history.append(assistant(answer))
        return placement, turn.id


@pytest.fixture
def chats(serve_ledger: ServeLedger) -> Chats:
    return Chats(serve_ledger)


@pytest.mark.parametrize("restarted", [False, True], ids=["from memory", "from the ledger"])
def test_three_interleaved_chats(chats: Chats, restarted: bool) -> None:
    histories: list[list[Message]] = [[], [], []]
    placed: list[list[tuple[Found, str]]] = [[], [], []]
    for round_number in range(4):
        for i, history in enumerate(histories):
            if restarted:
                chats.restart()
            placed[i].append(
                chats.ask(history, f"chat {i} question {round_number}", f"chat {i} answer {round_number}")
            )
    sessions = [{placement.session_id for placement, _ in chat} for chat in placed]
    assert [len(ids) for ids in sessions] == [1, 1, 1]
    assert len(set.union(*sessions)) == 3
    for chat in placed:
        assert chat[0][0].continues is None
        assert [p.continues for p, _ in chat[1:]] == [turn_id for _, turn_id in chat[:-1]]


def test_the_same_words_of_another_user_are_another_session(chats: Chats) -> None:
    alice: list[Message] = []
    first, _ = chats.ask(alice, "Hi", "Hello!")
    placement = chats.finder.place("bob", [*alice, user("And now?")], {}, {})
    assert placement.session_id != first.session_id
    assert placement.continues is None


def test_an_edited_history_is_a_branch_of_the_same_session(chats: Chats) -> None:
    history: list[Message] = []
    first, turn1 = chats.ask(history, "one", "answer one")
    chats.ask(history, "two", "answer two")
    edited = [*history[:2], user("two, but differently")]
    branch = chats.finder.place("alice", edited, {}, {})
    assert (branch.session_id, branch.continues) == (first.session_id, turn1)


def test_a_past_that_was_compacted_keeps_the_session(chats: Chats) -> None:
    history: list[Message] = []
    for i in range(4):
        first, last = chats.ask(history, f"question {i}", f"answer {i}")
    compacted = [user("Summary of what was said before: much."), *history[-2:], user("go on")]
    chats.restart()
    placed = chats.finder.place("alice", compacted, {}, {})
    assert (placed.session_id, placed.continues) == (first.session_id, last)


def test_tool_calls_in_the_middle_of_a_turn(chats: Chats, serve_ledger: ServeLedger) -> None:
    history = [user("weather?")]
    called = assistant(None, ("get_weather", '{"city": "Rome"}'))
    placement = chats.finder.place("alice", history, {}, {})
    turn = make_turn("t1", placement.session_id, messages=history, keys=reply_keys("alice", history, called))
    serve_ledger.append([turn])
    resent = assistant("", ("get_weather", '{"city":"Rome"}'))
    resent["tool_calls"][0]["id"] = "rewritten"
    placed = chats.finder.place("alice", [*history, resent, tool("sunny")], {}, {})
    assert (placed.session_id, placed.continues) == (placement.session_id, "t1")


@pytest.mark.parametrize("restarted", [False, True], ids=["from memory", "from the ledger"])
@pytest.mark.parametrize("rewritten", [False, True])
def test_a_call_is_known_by_its_id_when_nothing_before_it_is_as_it_was(
    chats: Chats, serve_ledger: ServeLedger, restarted: bool, rewritten: bool
) -> None:
    """Cline summarises the past between a call and its result, and names no session."""
    history = [user("count the words")]
    called = assistant(None, ("run", '{"command": "wc"}'))
    called["tool_calls"][0]["id"] = "call_6b66a548250b9d61372d3236t0"
    placement = chats.finder.place("alice", history, {}, {})
    keys = reply_keys("alice", history, called)
    serve_ledger.append([make_turn("t1", placement.session_id, messages=history, keys=keys)])
    chats.finder.remember(keys, "t1", placement.session_id)
    if restarted:
        chats.restart()
    if rewritten:
        called["tool_calls"][0]["id"] = "call6b66a548250b9d61372d3236t0"
    later = [user("Context summary: words are to be counted."), called, tool("2")]
    placed = chats.finder.place("alice", later, {}, {})
    assert (placed.session_id, placed.continues) == (placement.session_id, "t1")
    other = chats.finder.place("bob", later, {}, {})
    assert (other.session_id != placement.session_id, other.continues) == (True, None)
    called["tool_calls"][0]["id"] = "call_0"  # of another server
    assert chats.finder.place("alice", later, {}, {}).continues is None


# --- explicit ids ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"x-session-id": "s"}, {"session_id": "other"}, "s"),
        ({"x-session-id": "chat:1"}, {}, "chat:1"),
        ({"x-session-affinity": "s:12"}, {}, "s"),
        ({"session_id": "s"}, {}, "s"),
        ({"session_id": "s:3", "x-session-affinity": "better:3"}, {}, "better"),
        ({}, {"session_id": "s"}, "s"),
        ({}, {"session_id": 7}, "7"),
        ({}, {"metadata": {"session_id": "s"}}, "s"),
        ({}, {"session_id": {"a": 1}, "metadata": "none"}, None),
        ({}, {"user": "alice", "session_id": "", "metadata": None}, None),
    ],
)
def test_every_way_to_state_a_session(
    headers: dict[str, str], body: dict[str, Any], expected: str | None
) -> None:
    assert explicit_session(headers, body) == expected


@given(st.text(st.characters(exclude_categories=()), min_size=1))
def test_any_stated_id_is_fit_for_a_header_and_stays_itself(stated: str) -> None:
    found = explicit_session({}, {"session_id": stated})
    assert found is not None
    assert found.isascii()
    assert found.isprintable()
    assert 0 < len(found) <= 200
    assert explicit_session({}, {"session_id": stated}) == found
    assert explicit_session({}, {"session_id": stated + "\0"}) != found


def test_a_stated_id_groups_turns_that_share_no_words(chats: Chats) -> None:
    first, _ = chats.ask([], "one", "answer one", **{"x-session-id": "mine"})
    second, _ = chats.ask([], "two", "answer two", **{"x-session-id": "mine"})
    assert [(found.session_id, found.continues) for found in (first, second)] == [("mine", None)] * 2


def test_a_stated_id_wins_over_the_words(chats: Chats) -> None:
    history: list[Message] = []
    _, turn1 = chats.ask(history, "one", "answer one", **{"x-session-id": "a"})
    continued, _ = chats.ask(list(history), "two", "answer two", **{"x-session-id": "a"})
    assert (continued.session_id, continued.continues) == ("a", turn1)
    moved, _ = chats.ask(list(history), "two", "answer two", **{"x-session-id": "b"})
    assert (moved.session_id, moved.continues) == ("b", None)


def test_claude_code_s_name_of_a_session_holds_it_together(chats: Chats) -> None:
    name, history = "x-claude-code-session-id", list[Message]()
    first, turn1 = chats.ask(history, "one", "answer one", **{name: "a"})
    compacted, _ = chats.ask([], "A summary of what was said", "answer two", **{name: "a"})
    assert [first.session_id, compacted.session_id] == ["a", "a"]
    resumed, _ = chats.ask(history, "three", "answer three", **{name: "b"})
    assert (resumed.session_id, resumed.continues) == ("a", turn1)


@pytest.mark.parametrize("restarted", [False, True], ids=["from memory", "from the ledger"])
def test_another_users_id_does_not_collide(chats: Chats, restarted: bool) -> None:
    placed: dict[str, set[str]] = {}
    for who in ("alice", "bob", "carol", "alice", "bob", "carol"):
        if restarted:
            chats.restart()
        placement, _ = chats.ask([], "Hi", f"Hello {who}", who=who, **{"x-session-id": "main"})
        placed.setdefault(who, set()).add(placement.session_id)
    assert placed["alice"] == {"main"}
    assert [len(ids) for ids in placed.values()] == [1, 1, 1]
    assert len(set.union(*placed.values())) == 3


def test_nobody_can_name_the_session_derived_for_somebody_else(chats: Chats) -> None:
    chats.ask([], "Hi", "Hello", who="alice", **{"x-session-id": "main"})
    derived = (
        SessionFinder(chats.serve_ledger).place("bob", [user("Hi")], {"x-session-id": "main"}, {}).session_id
    )
    taken, _ = chats.ask([], "Hi", "Hello", who="mallory", **{"x-session-id": derived})
    assert taken.session_id == derived
    chats.restart()
    placement, _ = chats.ask([], "Hi", "Hello", who="bob", **{"x-session-id": "main"})
    assert placement.session_id not in ("main", derived)


# --- cost ------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [{}, {"x-session-id": "mine"}], ids=["no id", "stated id"])
def test_the_number_of_queries_does_not_depend_on_the_history(
    chats: Chats, headers: dict[str, str], count_statements: Callable[[ServeLedger], list[str]]
) -> None:
    history: list[Message] = []
    statements = count_statements(chats.serve_ledger)
    most = 0
    for i in range(40):
        chats.restart()
        del statements[:]
        chats.finder.place("alice", [*history, user("more")], headers, {})
        most = max(most, len(statements))
        chats.ask(history, f"question {i}", f"answer {i}", **headers)
    assert most <= 1 + len(headers)
    del statements[:]
    chats.finder.place("alice", [*history, user("more")], headers, {})
    shared = chats.serve_ledger.db.dialect.name == "postgresql"  # another gateway may have answered since
    assert len(statements) == int(shared)


@pytest.fixture
def count_statements() -> Callable[[ServeLedger], list[str]]:
    def watch(serve_ledger: ServeLedger) -> list[str]:
        statements: list[str] = []

        @sa.event.listens_for(serve_ledger.db, "before_cursor_execute")
        def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if statement != "BEGIN":
                statements.append(statement)

        return statements

    return watch
