"""The labelled set: big enough, balanced, and its halves really apart."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter

import pytest

from openclaw_rl.judge.shots import NUM_SETS, case_of, read_cases

_WORD = re.compile(r"\w+")


def words(row: dict[str, object]) -> frozenset[str]:
    text = json.dumps([row["messages"], row["reply"], row["next_state"]], ensure_ascii=False).lower()
    frame = {
        "role",
        "user",
        "content",
        "assistant",
        "tool",
        "tool_calls",
        "name",
        "arguments",
        "call_1",
        "id",
    }
    return frozenset(_WORD.findall(text)) - frame - {"tool_call_id"}


@pytest.mark.parametrize("half", ["train", "test"])
def test_size_and_balance(half: str) -> None:
    rows = read_cases(half)
    assert len(rows) >= 170
    counts = Counter(row["label"] for row in rows)
    assert set(counts) == {1, 0, -1}
    assert min(counts.values()) >= 0.28 * len(rows)
    kinds = Counter(row["next_state"][-1]["role"] for row in rows)
    assert kinds["tool"] >= 0.18 * len(rows)
    foreign = [row for row in rows if {"german", "french", "spanish", "italian"} & set(row["tags"])]
    assert len(foreign) >= 0.07 * len(rows)


def test_the_halves_share_nothing() -> None:
    def digest(row: dict[str, object]) -> str:
        return hashlib.sha256(" ".join(sorted(words(row))).encode()).hexdigest()

    train, test = read_cases("train"), read_cases("test")
    assert not {digest(row) for row in train} & {digest(row) for row in test}
    assert len({digest(row) for row in [*train, *test]}) == len(train) + len(test)


def test_no_near_duplicates() -> None:
    """In the train half several people may react to one reply; then their reactions differ."""
    rows = [*read_cases("train"), *read_cases("test")]
    said = [words({**row, "messages": [], "reply": ""}) for row in rows]
    asked = [json.dumps([row["messages"], row["reply"]]) for row in rows]
    sets = [words(row) for row in rows]
    for index in range(len(rows)):
        for other in range(index + 1, len(rows)):
            compared = said if asked[index] == asked[other] else sets
            shared, both = compared[index] & compared[other], compared[index] | compared[other]
            assert len(shared) / len(both) <= 0.8, shared


def test_examples_in_prompts_cover_every_class() -> None:
    rows = read_cases("train")
    for number in range(1, NUM_SETS + 1):
        shots = [row for row in rows if f"shot-{number}" in row["tags"]]
        found = Counter((row["next_state"][-1]["role"], row["label"]) for row in shots)
        assert len(found) == 6
        assert min(found.values()) >= 2
    assert not any(tag.startswith("shot") for row in read_cases("test") for tag in row["tags"])


@pytest.mark.parametrize(("name", "least"), [("injection", 48), ("injection-heldout", 40)])
def test_injections_differ_from_their_base_only_by_the_attack(name: str, least: int) -> None:
    rows = read_cases(name)
    assert len(rows) >= least
    for row in rows:
        assert case_of(row) != case_of({**row, **row["injected"]})
        assert set(row["injected"]) <= {"reply", "next_state"}
