"""``eval wishes``: who draws the wishes, what a strict person says, and what the tables are made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.evals.personalize.talk import ChatReply, ConversationLog
from openclaw_rl.evals.wishes import report
from openclaw_rl.evals.wishes.arm import PRAISE, StrictUser, WishArm, held_out
from openclaw_rl.evals.wishes.checks import has_wish
from openclaw_rl.evals.wishes.items import items
from openclaw_rl.evals.wishes.plan import contraries, shared, tell
from openclaw_rl.evals.wishes.wish import TRAINED, UNSEEN, drawn, requests, written
from openclaw_rl.train.exam import draw_items, gate_requests
from openclaw_rl.train.prompts import _lines

KNOWN = written()


def test_nobody_chooses_what_is_drawn() -> None:
    one, again, other = drawn("a", 12), drawn("a", 12), drawn("b", 12)
    assert [wish.name for wish in one] == [wish.name for wish in again]
    assert [wish.name for wish in one] != [wish.name for wish in other]
    assert len({wish.name for wish in one}) == 12
    assert len({wish.kind for wish in one}) == 11, "every kind before any comes twice"


def test_there_are_enough_wishes_of_many_kinds() -> None:
    assert len(KNOWN) >= 24
    assert len({wish.kind for wish in KNOWN.values()}) >= 8
    assert len(contraries()) >= 3
    assert all(len(wish.says) >= 1 and wish.checks for wish in KNOWN.values())


def test_training_anchor_gate_and_test_share_no_wording() -> None:
    asked = {request.text for request in requests("train", TRAINED, 200)}
    tested = {request.text for request in held_out(100)}
    taught, checked = set(_lines("requests.txt")), set(gate_requests())
    gate = {item.messages[-1]["content"] for bound in (True, False) for item in draw_items(bound, None, 0)}
    examined = {item.messages[-1]["content"] for item in items(400)}
    for one, other in (
        (asked, tested),
        (asked, taught),
        (tested, taught),
        (tested, checked),
        (gate, examined),
    ):
        assert not one & other
    assert {request.form for request in held_out(100)} == {*TRAINED, *UNSEEN}


@pytest.mark.parametrize(
    ("checks", "good", "bad"),
    [
        ({"max_sentences": 1}, "Rain is water.", "Rain is water. It falls."),
        ({"max_words": 4}, "Rain is just water.", "Rain is water that falls from clouds."),
        ({"starts": "Well now"}, "Well now, rain is water.", "Rain, well now, is water."),
        ({"ends": "Take care"}, "Rain is water. Take care!", "Take care, rain is water."),
        ({"mentions": ["Boss"]}, "Yes, Boss, it rains.", "Yes, it rains."),
        ({"exclamations": 2}, "It rains! It pours!", "It rains!"),
        ({"numbered": 2}, "1. Rain\n2. Snow", "Rain and snow"),
        ({"without_letter": "o"}, "It is rain.", "It is snow."),
        ({"exact_words": 3}, "It rains now", "It rains"),
    ],
)
def test_what_has_a_wish(checks: dict[str, Any], good: str, bad: str) -> None:
    assert has_wish(good, checks)
    assert not has_wish(bad, checks)


class Scripted:
    def __init__(self, *texts: str) -> None:
        self._texts, self.heard = iter(texts), list[str]()

    def ask(self, messages: list[dict[str, str]], seed: int, sampling: Any = None) -> ChatReply:
        self.heard.append(messages[-1]["content"])
        return ChatReply("id", next(self._texts), 0, 1, 1)


def test_a_strict_person_praises_only_what_has_the_wish_and_the_topic() -> None:
    wish = KNOWN["one-sentence"]
    request = requests("train", TRAINED, 1, 0)[0]
    topic = request.stems[0]
    long, elsewhere, right = f"{topic} is. " * 5, "My boat is green and old.", f"I know that {topic} is old."
    person = StrictUser(Scripted(long, elsewhere, right), [wish], 0)  # type: ignore[arg-type]
    row = person.converse(0)
    assert [turn["met"] for turn in row["turns"]] == [False, False, True]
    assert row["turns"][0]["said"] == wish.says[0]
    assert row["turns"][1]["said"] == "That is not about what I asked."
    assert row["turns"][2]["said"] in PRAISE
    assert not row["first"]
    assert StrictUser(Scripted(right, "ok"), [wish], 0).converse(0)["first"]  # type: ignore[arg-type]


def test_stories_are_told_of_wishes_that_can_be_learned() -> None:
    one, two, three = KNOWN["one-sentence"], KNOWN["numbered"], KNOWN["french"]
    told = [tell(story, 1, [one, two, three], [one, two], contraries()) for story in ("alone", "taken-back")]
    assert [[arm.wish.name for arm in arms] for arms in told] == [
        ["one-sentence", "numbered", "french"],
        ["one-sentence", "numbered"],
    ]
    assert told[1][0].turned == []
    pairs = tell("second", 0, [one, two, three], [one, two], [])
    assert [arm.turned for arm in pairs] == [[one, two], [two, one]]
    for arm in tell("against", 0, [], [], contraries()):
        assert arm.story == "against"
        assert arm.turned == [arm.second], "the contrary one takes its place"
    assert len({arm.name for arms in told for arm in arms} | {arm.name for arm in pairs}) == 7


def test_three_people_share_a_system_and_each_other_arm_has_its_own() -> None:
    wishes = list(KNOWN.values())[:4]
    systems = shared(tell("together", 2, wishes, [], []))
    assert [[arm.wish for arm in arms] for arms in systems] == [wishes[:3], wishes[3:]]
    assert {arm.story for arms in systems for arm in arms} == {"together"}
    alone = tell("alone", 2, wishes, [], [])
    assert [len(arms) for arms in shared(alone)] == [1] * 4
    assert not {arm.name for arm in alone} & {arm.name for arms in systems for arm in arms}


def reply(met: list[bool], form: str = "trained", shows: list[bool] | None = None) -> dict[str, Any]:
    return {"met": met, "shows": shows or met, "form": form, "topic": True, "degenerate": False, "reply": ""}


def arm_log(out: Path, name: str, facts: dict[str, Any]) -> ConversationLog:
    folder = out / "arms" / name
    folder.mkdir(parents=True)
    (folder / "arm.json").write_text(
        json.dumps({"wish": "w", "seed": 0, "kind": "form", "second": None, **facts})
    )
    return ConversationLog(folder / "log.jsonl")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    base = ConversationLog(tmp_path / "baselines.jsonl")
    base.write("items", {"right": [True, True, False, True]})
    base.write("plain", {"rows": [reply([False])]})
    rows = [reply([n < 5]) for n in range(10)]
    for wish in ("w", "v"):
        base.write("told", {"wish": wish, "right": [True] * 3, "note": [], "untold": 0.0, "rows": rows})
    return tmp_path


def test_learned_is_near_the_told_base_twice_in_a_row(out: Path) -> None:
    log = arm_log(out, "w-0", {"story": "alone"})
    for number, met in enumerate((2, 5, 1, 4, 4)):
        log.write("look", {"number": number, "rows": [reply([n < met]) for n in range(10)]})
        log.write("conversation", {"number": number, "first": number >= 2})
    log.write("final", {"rows": [reply([n < 6], "unseen" if n % 2 else "trained") for n in range(10)]})
    log.write("items", {"right": [True, True, False]})
    [result] = report.collect(out)
    assert (result.told, result.now) == (0.5, 0.6)
    assert result.reached == 4, "the second look was near, and the third was not"
    assert result.in_a_row == 5
    assert (result.trained, result.unseen) == (0.6, 0.6)
    assert result.jobs == 0.5, (
        "of the items that the base gets right, the second and fourth have a system prompt"
    )
    assert "1 of 1" in report.write(out)


def test_an_arm_none_of_whose_versions_served_is_reported_too(out: Path) -> None:
    log = arm_log(out, "w-0", {"story": "alone"})
    log.write("conversation", {"number": 0, "first": False})
    log.write("final", {"rows": [reply([False])] * 4})
    log.write("items", {"right": [True, True, True]})
    [result] = report.collect(out)
    assert result.reached is None
    assert "w-0" in report.write(out)


def test_without_arms_only_the_baselines_are_there_to_report(out: Path) -> None:
    """No story is told of wishes that the told base does not manage."""
    assert report.write(out).startswith("| wish |")


def test_people_at_once_are_reported_beside_those_alone(out: Path) -> None:
    for name, story, met in (("w-0", "alone", True), ("w-together-0", "together", False)):
        log = arm_log(out, name, {"story": story})
        log.write("final", {"rows": [reply([met])] * 4})
        log.write("items", {"right": [True, True, True]})
    alone, together = report.write(out).split("Three people")
    assert "| w-0 | 0.50 | 1.00 |" in alone
    assert "| w-together-0 | 0.50 | 0.00 |" in together


def pair_log(out: Path, story: str, seed: int, looks: list[int], final: int, wish: str = "w") -> None:
    """One arm: of ten replies, how many met the wish after each conversation and at the end."""
    log = arm_log(out, f"{wish}-{story}-{seed}", {"story": story, "wish": wish, "seed": seed})
    for number, met in enumerate(looks):
        log.write("look", {"number": number, "rows": [reply([n < met]) for n in range(10)]})
    log.write("final", {"rows": [reply([n < final]) for n in range(10)]})
    log.write("items", {"right": [True, True, True]})


def test_each_wish_alone_stands_beside_the_same_wish_and_seed_together(out: Path) -> None:
    pair_log(out, "alone", 0, looks=[5, 5], final=8)
    pair_log(out, "together", 0, looks=[1, 1, 5, 5], final=6)
    pair_log(out, "alone", 1, looks=[1, 5, 5], final=6)
    pair_log(out, "together", 1, looks=[1], final=2)
    pair_log(out, "alone", 2, looks=[5], final=10)  # nobody to compare with
    pair_log(out, "together", 0, looks=[5], final=10, wish="v")
    paired = report.pairs(report.collect(out))
    assert [(p.alone.name, p.together.name) for p in paired] == [
        ("w-alone-0", "w-together-0"),
        ("w-alone-1", "w-together-1"),
    ]
    text = report.write(out)
    assert "| w | 2 | 0.50 | 0.70 | 0.40 | -0.30 (-0.40 … -0.20) | 1.5 (2 of 2) | 3 (1 of 2) |" in text
    assert "2 pairs of wishes that the told base meets at least 30%: together minus alone -0.300 ±" in text
    assert "more than 0.10 below alone: 2." in text
    assert "both ways 1; of these, together after +2.0 conversations" in text


def test_without_arms_run_both_ways_there_is_no_paired_table(out: Path) -> None:
    pair_log(out, "alone", 0, looks=[5], final=8)
    pair_log(out, "together", 1, looks=[5], final=8)
    assert "alone and together" not in report.write(out)


def test_what_was_taken_back_is_gone_when_it_shows_no_more(out: Path) -> None:
    log = arm_log(out, "w-taken-back-0", {"story": "taken-back"})
    log.write("look", {"number": 0, "rows": [reply([True])] * 4})
    log.write("turned", {"number": 2})
    log.write("look", {"number": 2, "rows": [reply([True])] * 4})
    log.write("look", {"number": 4, "rows": [reply([False])] * 4})
    log.write("final", {"rows": [reply([False])] * 4})
    assert report.collect(out) == []
    [turn] = report.collect_turns(out)
    assert (turn.before, turn.shown, turn.until) == (1.0, 0.0, 3)
    assert "w-taken-back-0" in report.write(out)


def test_of_two_wishes_both_count(out: Path) -> None:
    log = arm_log(out, "w-then-v-0", {"story": "second", "second": "v"})
    log.write("turned", {"number": 3})
    log.write("look", {"number": 3, "rows": [reply([True, False])] * 2})
    log.write("look", {"number": 5, "rows": [reply([True, True]), reply([True, False])]})
    log.write("final", {"rows": [reply([True, True]), reply([True, False]), reply([False, True])]})
    [turn] = report.collect_turns(out)
    assert turn.until == 3
    assert (turn.first, turn.second, turn.both) == pytest.approx((2 / 3, 2 / 3, 1 / 3))
    assert WishArm(KNOWN["numbered"], 0, second=KNOWN["french"]).name == "numbered-then-french-0"
