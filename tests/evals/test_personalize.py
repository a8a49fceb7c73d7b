"""The evaluation's parts: tasks that know their answers, users from files, and the sums."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from openclaw_rl.evals.personalize import report
from openclaw_rl.evals.personalize.arm import (
    MEMORY,
    UNTRAINED,
    PersonalizeArm,
    PersonalizeRules,
    is_over,
    sessions_until,
)
from openclaw_rl.evals.personalize.plan import as_hint, run_all
from openclaw_rl.evals.personalize.report import interval, worse_kinds
from openclaw_rl.evals.personalize.talk import ConversationLog
from openclaw_rl.evals.personalize.tasks import KINDS, draw, rambles
from openclaw_rl.evals.personalize.users import FileUser, built_in, load_user
from openclaw_rl.testing import tiny_model

OWN = """
name = "rhymes"
asks = [{asks}]
complains = ["Please end with a rhyme."]
thanks = ["Lovely!"]
[check]
matches = "rhyme$"
max_words = 5
"""


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_is_talked_about_is_never_examined(kind: str) -> None:
    trained = {task.key for task in islice(draw([kind], "train", 3), 300)}
    held_out = {task.key for task in islice(draw([kind], "held_out", 4), 300)}
    assert trained
    assert held_out
    assert not trained & held_out


def test_tasks_depend_on_the_seed_alone() -> None:
    first, again, other = ([t.text for t in islice(draw(["what", "why"], "train", s), 20)] for s in (1, 1, 2))
    assert first == again != other


def test_answers_are_recognised() -> None:
    found = {task.text: task for make in KINDS.values() for task in make()}
    sky = found["Why is the sky blue?"]
    assert sky.is_answered_by("Sunlight is scattered by the air.")
    assert not sky.is_answered_by("It's a wonder!")
    five = found["What is 2 + 3?"]
    assert five.is_answered_by("2 + 3 = 5.")
    assert not five.is_answered_by("2 + 3 = 6")
    bought = next(task for text, task in found.items() if text.startswith("Anna bought a red bicycle"))
    assert bought.is_answered_by("It is RED.")
    assert not bought.is_answered_by("It is blue, or perhaps reddish.")


def test_falling_apart_is_no_answer() -> None:
    assert rambles("  ...  ")
    assert rambles("the sky " * 30)
    assert not rambles("The sky is blue because air scatters blue light more than red light does on its way.")


@pytest.mark.parametrize("name", built_in())
def test_every_user_complains_in_words_that_hold_the_wish(name: str) -> None:
    user = load_user(name)
    assert isinstance(user, FileUser)
    for said in user.complains:
        assert len(as_hint(said).split()) >= 3
        assert not user.likes("")
    assert user.praise(random.Random(0)) in user.thanks


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("short", "A poem is a short text with rhythm.", "word " * 40),
        ("list", "1. Boil water.\n2. Add the egg.", "Boil water, then add the egg."),
        ("simple", "Rain falls when clouds get heavy.", "Precipitation follows condensation."),
        ("student", "First I add both numbers.", "1. Add both numbers."),
        ("teacher", "Well done, that is right!", "That is right."),
    ],
)
def test_what_they_like(name: str, good: str, bad: str) -> None:
    assert load_user(name).likes(good)
    assert not load_user(name).likes(bad)


def test_a_user_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "rhymes.toml"
    file.write_text(OWN.format(asks=", ".join(f'"Tell me about animal number {i}"' for i in range(20))))
    user = load_user(str(file))
    assert user.likes("this ends with rhyme")
    assert not user.likes("a rhyme that is far too long to be liked, rhyme")
    task = next(user.tasks("train", 0))
    assert task.is_answered_by("That animal is a frog.")
    assert not task.is_answered_by("No idea.")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('name = "x"', "complains, thanks, check is missing"),
        (OWN.format(asks="") + "\nrude = 1", "unknown check.rude"),
        (OWN.format(asks="").replace('"rhyme$"', '"("'), "check.matches is no regular expression"),
        ("name = ", "cannot read the user"),
    ],
)
def test_a_bad_file_says_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=says.replace(".", r"\.")):
        load_user(str(file))


def test_an_unknown_user_is_told_who_there_is() -> None:
    with pytest.raises(ValueError, match=r"built in: .*short"):
        load_user("nobody")


def test_too_few_asks_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "few.toml"
    file.write_text(OWN.format(asks='"What is a cat?"'))
    user = load_user(str(file))
    with pytest.raises(ValueError, match="write more asks"):
        [next(user.tasks(part, 0)) for part in ("train", "held_out")]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pleased", "count"), [("1110", 3), ("0111", 4), ("110110", None), ("", None), ("1101011100", 8)]
)
def test_sessions_until_three_in_a_row(pleased: str, count: int | None) -> None:
    rows = [{"number": i, "strict": mark == "1"} for i, mark in enumerate(pleased)]
    assert sessions_until(rows[::-1], "strict") == count


def test_worse_is_only_what_chance_does_not_explain() -> None:
    def bits(right: str) -> list[dict[str, object]]:
        return [{"kind": "sums", "right": mark == "1"} for mark in right]

    assert worse_kinds(bits("11111"), bits("00000")) == ["sums (−5 +0 of 5)"]  # 1/32
    assert worse_kinds(bits("1111"), bits("0000")) == []  # 1/16
    assert worse_kinds(bits("1111100"), bits("0000011")) == []
    assert worse_kinds(bits("11"), bits("11")) == []


def test_an_interval_holds_its_mean() -> None:
    mean, low, high = interval([4, 8, 6, 7, 5])
    assert low < mean == 6 < high
    assert interval([3]) == (3, 3, 3)


def _write_arm(folder: Path, *, is_interrupted: bool) -> None:
    log = ConversationLog(folder / "log.jsonl")
    turn = {"prompt_tokens": 20, "completion_tokens": 10, "said": None, "truth": None, "id": "t"}
    look = {"ask": "Why?", "liked": True, "answered": True, "wishes": [True], "kind": "question"}
    for number in (0, 5):
        rows = [{**look, "reply": f"reply {number}", "liked": number == 5}]
        log.write("held_out", {"number": number, "user": "short", "stage": "", "rows": rows})
    log.write("probes", {"number": 0, "rows": [{**look, "reply": "4"}]})
    for number in range(5):
        session = {
            "user": "short",
            "number": number,
            "turns": [turn],
            "published": True,
            "strict": number > 1,
        }
        log.write("session", session)
    if not is_interrupted:
        log.write("probes", {"number": 5, "rows": [{**look, "reply": "5", "answered": False}]})
        log.write("end", {"seconds": 50.0, "verdicts": [], "policies": [], "status": {}})


def test_a_log_survives_a_kill_and_odd_line_ends(tmp_path: Path) -> None:
    log = ConversationLog(tmp_path / "log.jsonl")
    log.write("session", {"reply": "one\u2028two\x85three"})
    with log.path.open("a") as file:
        file.write('{"type": "session", "reply": {}')  # killed while writing
    again = ConversationLog(log.path)
    again.write("end", {})
    assert ConversationLog(log.path).rows == again.rows == [*log.rows, {"type": "end"}]


def test_an_interrupted_arm_counts_as_far_as_it_came(tmp_path: Path) -> None:
    for seed, is_interrupted in ((0, False), (1, True)):
        folder = tmp_path / "arms" / f"hybrid-short-{seed}"
        folder.mkdir(parents=True)
        _write_arm(folder, is_interrupted=is_interrupted)
    (row,) = report.write(tmp_path)["rows"]
    assert (row["seeds"], row["interrupted"], row["reached"]) == (2, 1, "2/2")
    assert row["strict"][0] == 5
    assert row["held_out"][0] == 1.0
    assert (row["right_before"], row["right"]) == (1.0, 0.0)  # of the one that was looked at twice
    assert row["seconds_per_session"] == 10
    table = (tmp_path / "report.md").read_text()
    assert "2 (1 interrupted)" in table
    assert "| short | hybrid | 10 | 30 | – |" in table


def test_where_no_arm_came_to_its_end_the_table_says_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "arms" / "hybrid-short-0").mkdir(parents=True)
    _write_arm(tmp_path / "arms" / "hybrid-short-0", is_interrupted=True)
    report.write(tmp_path)
    assert "nan" not in (tmp_path / "report.md").read_text()
    assert json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)["rows"]


def test_an_evaluation_from_its_arms_to_its_table(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Real systems around a tiny network: one for the arm that learns, one for all that do not."""
    # A short name: the path of a system's socket may have 107 characters.
    tmp_path = tmp_path_factory.mktemp("eval")
    model = tiny_model(tmp_path / "model")
    flags = ["--model", str(model), "--renderer", "qwen3", "--kernel", "float", "--device", "cpu"]
    flags += ["--judge", "openclaw_rl.testing:WordJudge", "--num-threads", "1"]
    arms = [
        PersonalizeArm("hybrid", ("short",), 0),
        PersonalizeArm(UNTRAINED, ("short",), 0),
        PersonalizeArm(MEMORY, ("short", "simple"), 0),
    ]
    rules = PersonalizeRules(limit=2, held_out=2, probes=1, hold=0, flags=tuple(flags))
    assert run_all(arms, tmp_path, rules, parallel=3) == []
    assert [is_over(arm, tmp_path / "arms" / arm.name, rules) for arm in arms] == [True] * 3
    servers = {path.parent.parent.name for path in tmp_path.glob("**/serve.db")}
    assert servers == {"hybrid-short-0", "not learning"}
    rows = report.write(tmp_path)["rows"]
    assert {(row["users"], row["method"]) for row in rows} == {
        ("short", "hybrid"), ("short", UNTRAINED), ("short+simple", MEMORY),
    }  # fmt: skip
    ended = (tmp_path / "not learning" / "home" / "serve.db").stat().st_mtime_ns
    assert run_all(arms, tmp_path, rules, parallel=3) == []  # nothing is left to do, and no server starts
    assert (tmp_path / "not learning" / "home" / "serve.db").stat().st_mtime_ns == ended

    longer = replace(rules, limit=3)
    assert run_all(arms, tmp_path, longer, parallel=3) == []
    for arm in arms:  # each went on where it had come to its end
        log = ConversationLog(tmp_path / "arms" / arm.name / "log.jsonl")
        for user in arm.users:
            mine = [row for row in (*log.of("session"), *log.of("held_out")) if row["user"] == user]
            assert [(row["type"], row["number"]) for row in mine] == [
                *(("session", number) for number in range(3)),
                *(("held_out", number) for number in (0, 2, 3)),
            ]
        assert [row["number"] for row in log.of("probes")] == [0, 2, 3]
        assert len(log.of("end")) == 2
        assert is_over(arm, log.path.parent, longer)
