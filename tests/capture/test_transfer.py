"""Export and import: nothing is lost on the way, also not between the two kinds of ledger."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw_rl.capture.serve_ledger import Delivery, ServeLedger
from openclaw_rl.capture.transfer import export_sessions, import_sessions
from openclaw_rl.types import Json, Token, TurnRecord

from .conftest import make_turn
from .test_serve_ledger import any_turns


def exported(serve_ledger: ServeLedger) -> list[str]:
    file = io.StringIO()
    number = export_sessions(serve_ledger, file)
    lines = file.getvalue().splitlines()
    assert len(lines) == number
    return lines


def conversation(session_id: str, num_turns: int) -> list[TurnRecord]:
    messages: list[Json] = []
    turns: list[TurnRecord] = []
    for i in range(num_turns):
        messages = [*messages, {"role": "user", "content": f"question {i}"}]
        turns.append(
            make_turn(
                f"{session_id}-{i}", session_id, messages=messages, text=f"answer {i}",
                prompt_ids=list(range(300 + i)), created_at=1000.0 + i,
                continues=turns[-1].id if turns else None, keys={"chain": f"{i:032x}", "pair": "ab" * 16},
            )
        )  # fmt: skip
        messages = [*messages, turns[-1].reply]
    return turns


@pytest.mark.postgres
@pytest.mark.parametrize(("source", "target"), [("sqlite", "postgresql"), ("postgresql", "sqlite")])
def test_from_one_kind_of_ledger_to_the_other(
    source: str, target: str, new_url: Callable[[str], str], open_ledger: Callable[[str], ServeLedger]
) -> None:
    first, second = open_ledger(new_url(source)), open_ledger(new_url(target))
    turns = [turn for i in range(45) for turn in conversation(f"s{i}", 1 + i % 5)]
    turns[3] = replace(turns[3], tokens=[replace(turns[3].tokens[0], forced=True, finish_reason="stop")])
    first.append([*turns, *(Delivery(turn.id, i % 3 > 0, i / 7) for i, turn in enumerate(turns) if i % 2)])
    lines = exported(first)
    assert import_sessions(second, lines) == len(turns)
    assert exported(second) == lines
    assert second.load_turn(turns[3].id) == turns[3]
    assert second.counts() == first.counts()
    assert second.check_integrity() == []
    assert import_sessions(second, lines) == len(turns)
    assert exported(second) == lines


def test_anything_a_client_may_send_survives(
    serve_ledger: ServeLedger, open_ledger: Callable[[str], ServeLedger], tmp_path: Path
) -> None:
    copy = open_ledger(f"sqlite:///{tmp_path}/copy.db")

    @settings(
        max_examples=30, deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(st.lists(any_turns(), max_size=3))
    def fill(turns: list[TurnRecord]) -> None:
        serve_ledger.append(turns)

    fill()
    lines = exported(serve_ledger)
    assert all(line.isascii() for line in lines)
    import_sessions(copy, lines)
    assert exported(copy) == lines


def test_the_trajectory_format(serve_ledger: ServeLedger) -> None:
    first, second = conversation("s1", 2)
    injected = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>x<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
    second.messages = [*second.messages, {"role": "user", "content": injected}]
    second.finish_reason = "cancelled"
    serve_ledger.append([first, second, Delivery(first.id, True, 5.0)])
    [line] = exported(serve_ledger)
    session = json.loads(line)
    assert (session["session_id"], session["user"]) == ("s1", "alice")
    one, two = session["turns"]
    assert one["prompt"] == [{"role": "user", "content": "question 0"}]
    assert one["response"] == {"role": "assistant", "content": "answer 0"}
    assert one["next_state"] == [{"role": "user", "content": "question 1"}]
    assert (one["type"], one["trainable"]) == ("unknown", True)
    assert one["exact"]["tokens"]["id"] == [100, 101, 102]
    assert one["exact"]["delivery"] == [True, 5.0]
    assert (two["next_state"], two["trainable"]) == (None, False)
    assert two["prompt"] == second.messages


@pytest.mark.parametrize(
    "bad",
    ["not json", '{"turns": [{"id": "x", "prompt": [], "response": {}}]}', "[1, 2]", '{"turns": 3}'],
)
def test_a_bad_line_stops_the_import_and_says_where(serve_ledger: ServeLedger, bad: str) -> None:
    other = json.dumps(json.loads(_line(serve_ledger)))
    with pytest.raises(
        ValueError, match=r"line 3 is no exported session .*; 2 turns before it were imported"
    ):
        import_sessions(serve_ledger, [other, "\n", bad, other])
    assert serve_ledger.counts()["turns"] == 2


def _line(serve_ledger: ServeLedger) -> str:
    serve_ledger.append(conversation("s1", 2))
    return exported(serve_ledger)[0]


def test_lists_of_different_lengths_are_refused(serve_ledger: ServeLedger) -> None:
    session = json.loads(_line(serve_ledger))
    session["turns"][0]["exact"]["tokens"]["logprob"].pop()
    with pytest.raises(ValueError, match="line 1"):
        import_sessions(serve_ledger, [json.dumps(session)])


def test_the_export_streams(open_ledger: Callable[[str], ServeLedger], tmp_path: Path) -> None:
    """A page of sessions is read only when the one before it has been written."""
    serve_ledger = open_ledger(f"sqlite:///{tmp_path}/x.db")
    serve_ledger.append([make_turn(f"t{i}", f"s{i}") for i in range(100)])
    sessions = serve_ledger.iter_sessions()
    next(sessions)
    serve_ledger.append([make_turn("late", "s-late")])
    ids = [turns[0].id for turns, _ in sessions]
    assert ids == [*(f"t{i}" for i in range(1, 100)), "late"]


def test_probability_zero_survives(serve_ledger: ServeLedger) -> None:
    turn = make_turn("t1", tokens=[Token(1, float("-inf"), -1.0, (1,), (float("-inf"),), 0)])
    serve_ledger.append([turn])
    [line] = exported(serve_ledger)
    import_sessions(serve_ledger, [line.replace('"t1"', '"t2"')])
    assert serve_ledger.load_turn("t2") == replace(turn, id="t2")
