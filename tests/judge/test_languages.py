"""Reactions in ten other languages: what the rules say of them, and what becomes a hint."""

from __future__ import annotations

from collections import Counter

import pytest

from openclaw_rl.judge.corrections import is_personal
from openclaw_rl.judge.hints import verbatim_hints
from openclaw_rl.judge.languages import language_of, reaction
from openclaw_rl.judge.rules import apply_rules
from openclaw_rl.judge.shots import case_of, read_cases
from openclaw_rl.text import sentences

HALVES = ("languages", "languages-heldout")


@pytest.mark.parametrize("half", HALVES)
def test_ten_languages_in_equal_parts(half: str) -> None:
    rows = read_cases(half)
    assert Counter(row["tags"][0] for row in rows) == dict.fromkeys(
        ["german", "french", "spanish", "italian", "portuguese", "dutch", "polish", "russian", "chinese",
         "japanese"], 8
    )  # fmt: skip
    assert set(Counter(row["label"] for row in rows)) == {1, 0, -1}


def test_idioms_are_told_in_every_language() -> None:
    """Those that the tables were written for; how little they know of others is in docs/lab/judge.md."""
    rows = read_cases("languages-idioms")
    assert set(Counter(row["tags"][0] for row in rows).values()) == {5}
    said = {
        row["next_state"][-1]["content"]: (reaction(row["next_state"][-1]["content"]), row["label"])
        for row in rows
    }
    assert {text: both for text, both in said.items() if both[0] != both[1]} == {}


def test_the_halves_share_no_reaction() -> None:
    one, other = ({row["next_state"][-1]["content"] for row in read_cases(half)} for half in HALVES)
    assert not one & other


@pytest.mark.parametrize("half", HALVES)
def test_a_language_is_known_or_left_alone(half: str) -> None:
    for row in read_cases(half):
        text = row["next_state"][-1]["content"]
        assert language_of(text) != "english"
        verdict = apply_rules(case_of(row))
        assert verdict is None or verdict.source.startswith("rule:")


@pytest.mark.parametrize("half", ["train", "test"])
def test_english_is_left_to_the_votes(half: str) -> None:
    """No English reaction of the labelled sets is taken for another language."""
    foreign = {"german", "french", "spanish", "italian", "dutch", "portuguese"}
    for row in read_cases(half):
        last = row["next_state"][-1]
        if last["role"] == "user" and not foreign & set(row["tags"]) and last["content"].isascii():
            assert reaction(last["content"]) in (None, row["label"]), last["content"]


@pytest.mark.parametrize("row", [row for row in read_cases("languages") if row["label"] < 0], ids=str)
def test_a_wish_becomes_a_hint_in_its_own_language(row: dict[str, str]) -> None:
    assert row["hint"] in " ".join(verbatim_hints(case_of(row)))


def test_sentences_end_in_every_script() -> None:
    assert sentences("太长了。请用一句话回答。") == ["太长了。", "请用一句话回答。"]
    assert sentences("違います！「はい。」と言って。") == ["違います！", "「はい。」と言って。"]


@pytest.mark.parametrize(
    "text",
    ["Ich heiße Anna Weber.", "J'habite 4 rue Verte.", "Me llamo Luis.", "Меня зовут Анна.", "我叫王伟。",
     "東京に住んでいます。", "Mi chiamo Luca.", "Mieszkam w Krakowie."],
)  # fmt: skip
def test_what_is_personal_is_so_in_every_language(text: str) -> None:
    assert is_personal(text)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Danke, aber das ist falsch.", None),
        ('Übersetze "Das ist falsch" ins Englische.', None),
        ("Kannst du das kürzer machen?", -1),
        ("Tu pourrais le faire rimer ?", None),
        ("Ahora sí que suena natural.", 1),
        ("Wie läuft das ab?", 0),
        ("Was passt dazu?", None),
        ("Das mag ich nicht.", None),
        ("Quel chapeau acheter ?", 0),
        ("Busca hoteles de lujo.", None),
        ("Come ho detto, siamo in tre.", None),
        ("Quando ci siamo incontrati?", 0),
        ("Como fazer carne ao ponto?", 0),
        ("Wie zit naast mij?", 0),
        ("Kiedy miał być pociąg?", 0),
        ("Мы проехали мимо дома.", None),
        ("怎么换一个灯泡？", 0),
        ("何を買いますか？", 0),
        ("Et combien ça coûte ?", 0),
        ("Je ne sais pas encore.", None),
        ("No, the answer is Paris.", None),
        ("Super, thanks!", None),
        ("No me gusta.", -1),
        ("Мне не нравится.", -1),
        ("太感谢了", 1),
    ],
)
def test_doubt_is_left_to_the_votes(text: str, score: int | None) -> None:
    assert reaction(text) == score
