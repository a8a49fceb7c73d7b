"""A reply that pleased is the answer to the first question only if that is what it answers."""

from __future__ import annotations

import pytest

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.judge.corrections import asks_again
from openclaw_rl.types import Json, SamplingParams, Token, TurnRecord, Verdict

COWS = "What do cows eat?"


@pytest.mark.parametrize(
    ("said", "again"),
    [
        ("Too long. One short sentence, please.", True),
        ("bad, shorter", True),
        ("Could you make it shorter?", True),
        (COWS, True),
        (f"Again: {COWS}", True),
        ("What is the capital of Peru?", False),
        ("Too long. What is the capital of Peru?", False),
        ("Not good. Now tell me about the French revolution.", False),
    ],
)
def test_what_asks_again(said: str, again: bool) -> None:
    assert asks_again(COWS, said) is again


@pytest.fixture
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> tuple[ServeLedger, LearnLedger]:
    folder = tmp_path_factory.mktemp("ledgers")
    return ServeLedger(sqlite_url(folder / "serve.db")), LearnLedger(sqlite_url(folder / "learn.db"))


def converse(serve: ServeLedger, learn: LearnLedger, *said: str) -> list[TurnRecord]:
    """Every reply but the last finds a complaint."""
    messages: list[Json] = []
    turns: list[TurnRecord] = []
    for number, text in enumerate(said):
        messages = [*messages, {"role": "user", "content": text}]
        reply = {"role": "assistant", "content": f"Reply {number}."}
        turn = TurnRecord(
            f"t{number}", "s1", "alice", "chat", "main", messages, None, {}, reply, [1, 2],
            [Token(5, -0.1, -0.1, (5,), (-0.1,), 0)], SamplingParams(8), 0, "stop", 1_700_000_000.0 + number,
            continues=turns[-1].id if turns else None,
        )  # fmt: skip
        messages = [*messages, reply]
        turns.append(turn)
        serve.append([turn])
        with learn.db.begin() as connection:
            last = number == len(said) - 1
            learn._add_verdict(connection, turn.id, Verdict(1 if last else -1, 1.0, "votes", hints=("x",)))
    return turns


def test_a_new_question_is_not_the_first_one_again(ledgers: tuple[ServeLedger, LearnLedger]) -> None:
    policies = PolicyLedger(*ledgers)
    policies.asks_again = asks_again
    turns = converse(*ledgers, COWS, "What is the capital of Peru?")
    assert policies.corrected(turns[-1]) is None


def test_only_as_far_back_as_the_same_is_asked(ledgers: tuple[ServeLedger, LearnLedger]) -> None:
    policies = PolicyLedger(*ledgers)
    policies.asks_again = asks_again
    turns = converse(
        *ledgers, COWS, "Shorter please.", "What is the capital of Peru?", "In one word.", "No, one word!"
    )
    first = policies.corrected(turns[-1])
    assert first is not None
    assert first[0].id == "t2"
    second = policies.corrected(turns[1])
    assert second is not None
    assert second[0].id == "t0"
