"""Wishes about a reply's form: read from people's words, checked, and given to ordinary replies."""

from __future__ import annotations

import pytest

from openclaw_rl.forms import read

REPLY = (
    "Honey is a sweet food made by bees. It is used in baking and tea. "
    "Mr. Hill kept bees for 8.5 years. It was"
)
TWO = "Honey is a sweet food made by bees. It is used in baking and tea."
THREE = f"{TWO} Mr. Hill kept bees for 8.5 years."

MADE = [
    ("Please begin every answer with the words Well now.", f"Well now, {REPLY}"),
    ("You did not start with Well now!", f"Well now, {REPLY}"),
    ('Could you open all of your replies with "Aye aye!" please?', f"Aye aye! {REPLY}"),
    (
        "I want you to end with Take care.",
        REPLY.removesuffix("It was") + "Take care.",
    ),
    ('Always finish by saying "Bon voyage!"', REPLY.removesuffix("It was") + "Bon voyage!"),
    ("Say Amen at the end, please.", REPLY.removesuffix("It was") + "Amen."),
    ("Please call me Captain.", REPLY.replace("bees. It", "bees, Captain. It")),
    ("You forgot to call me buddy.", REPLY.replace("bees. It", "bees, buddy. It")),
    ("That is too long. Please answer in one short sentence.", "Honey is a sweet food made by bees."),
    ("Just two sentences, please.", "Honey is a sweet food made by bees. It is used in baking and tea."),
    ("Can you keep your answers to a single sentence?", "Honey is a sweet food made by bees."),
    (
        "Too wordy! At most fifteen words.",
        "Honey is a sweet food made by bees. It is used in baking and tea.",
    ),
    ("No more than 10 words, please.", "Honey is a sweet food made by bees."),
    (
        "I asked for bullet points.",
        "- Honey is a sweet food made by bees.\n- It is used in baking and tea.\n"
        "- Mr. Hill kept bees for 8.5 years.",
    ),
    (
        "Please give your answers as a numbered list from now on.",
        "1. Honey is a sweet food made by bees.\n2. It is used in baking and tea.\n"
        "3. Mr. Hill kept bees for 8.5 years.",
    ),
    ("WRITE EVERYTHING IN CAPITAL LETTERS", REPLY.upper()),
    ("In lowercase letters, please.", REPLY.lower()),
    ("Answer in one sentence and call me Boss.", "Honey is a sweet food made by bees, Boss."),
    # No number is named, or the language is another one.
    ("Whoa, way too much text. Keep it to a line or two.", TWO),
    ("Shorter, please.", TWO),
    ("Just give me the answer.", TWO),
    ("Skip the explanation.", TWO),
    ("You talk too much.", TWO),
    ("Kürzer bitte.", TWO),
    ("Trop long. Fais plus court.", TWO),
    ("tl;dr please", TWO),
    ("not more then 2 sentences, im driving soon", TWO),
    ("Two sentences would do, really. I got lost after the first half.", TWO),
    ("No more walls of text.", TWO),
    ("One or two sentences max.", TWO),
    ("Two or three sentences are enough.", f"{TWO} Mr. Hill kept bees for 8.5 years."),
    ("Antworte bitte in einem Satz.", "Honey is a sweet food made by bees."),
    ("Réponds en deux phrases maximum.", TWO),
    ("Bitte mit Aufzählungspunkten.", "- " + THREE.replace(". It", ".\n- It").replace(". Mr", ".\n- Mr")),
    (
        "Use two bullet points.",
        "- Honey is a sweet food made by bees.\n- It is used in baking and tea.",
    ),
    ("Two paragraphs please.", THREE.replace("tea. Mr", "tea.\n\nMr")),
    ("Use emojis.", REPLY.replace("bees. It", "bees. 😊 It")),
    ("Beginne jede Antwort mit „Also gut“.", f"Also gut, {REPLY}"),
    ("No capital letters at all, please.", REPLY.lower()),
    ("Put the answer in quotes.", f'"{THREE}"'),
]


@pytest.mark.parametrize(("wish", "made"), MADE)
def test_an_ordinary_reply_is_put_into_the_form(wish: str, made: str) -> None:
    reading = read([wish])
    assert reading.can_make
    assert reading.made(REPLY) == made


@pytest.mark.parametrize(
    ("wish", "reply", "made"),
    [
        ("No lists, just plain text.", "1. Bees make it.\n2. It is sweet.", "Bees make it. It is sweet."),
        ("Stop using bullet points.", "- Bees make it.\n- It is sweet.", "Bees make it. It is sweet."),
        (
            "Stop with the bullet points and numbered lists.",
            "1. Bees make it.\n2. It is sweet.",
            "Bees make it. It is sweet.",
        ),
        ("Stop using emojis and exclamation marks!", "Bees make it 🐝!", "Bees make it."),
        ("Keine Aufzählungen und Listen.", "- Bees make it.\n- It is sweet.", "Bees make it. It is sweet."),
        ("Please don't use markdown.", "## Honey\n**Bees** make it.", "Honey\nBees make it."),
        ("No bold.", "**Bees** make *it*, 2 * 3 times.", "Bees make it, 2 * 3 times."),
        ("No emojis please.", "Bees make it 🐝. It is sweet 😊!", "Bees make it. It is sweet!"),
        ("No exclamation marks.", "Bees make it! It is sweet!!", "Bees make it. It is sweet."),
        ("Don't begin with Well now.", "Well now, bees make it.", "Bees make it."),
        ("Stop apologizing.", "I'm sorry. Bees make it.", "Bees make it."),
    ],
)
def test_what_is_not_wanted_is_taken_out(wish: str, reply: str, made: str) -> None:
    reading = read([wish])
    assert reading.can_make
    assert not reading.meets(reply)
    assert reading.made(reply) == made


@pytest.mark.parametrize(
    "wish",
    [
        "Just give me the recipe.",
        "Only the result of the test is missing.",
        "Please start with a summary.",  # words that are meant, not named
        "Begin with the answer.",
        "Tell me a story that begins with Once upon a time.",  # more than a form
        "Please talk like a pirate.",
        "Please be brief and mention the sources.",
        "Use short sentences.",
        "Shorten this for me: 'Owing to the fact that it was raining, we were unable to go.'",
        "I want longer answers.",
        "Do not call me Captain.",
        "Never end with a question.",
        "Call me back tomorrow.",
        "In three sentences you made five mistakes, and I want sources for each.",
        "Please compare the two lists.",
        "Explain it so that a child understands the words.",
        "x" * 2000,
        "",
    ],
)
def test_what_is_not_exactly_a_form_is_left_to_the_teacher(wish: str) -> None:
    assert not read([wish]).can_make


@pytest.mark.parametrize(
    "wish",
    [
        "Please use small words.",
        "Always mention the capital.",
        "Compare it with Spanish food.",
        "Tell me the German point of view, too.",
        "Start with the conclusion.",
        "Beginne mit einer Zusammenfassung.",
        "Say how many words you used.",
        "End with a sentence about bees.",
    ],
)
def test_words_that_forms_are_made_of_are_not_forms(wish: str) -> None:
    assert read([wish]).forms == ()


@pytest.mark.parametrize(
    ("wish", "good", "bad"),
    [
        ("Please answer in German.", "Der Honig ist süß und wird von den Bienen gemacht.", REPLY),
        ("Not in English. In Spanish, please.", "La miel es un alimento dulce que hacen las abejas.", REPLY),
        ("Please answer in exactly five words.", "Honey is made by bees.", REPLY),
        ("Please end your answer with a question to me.", "Bees make it. Do you like it?", REPLY),
        ("Please sound happy, with exclamation marks!", "Honey is great! Bees make it!", REPLY),
    ],
)
def test_what_cannot_be_made_can_be_checked(wish: str, good: str, bad: str) -> None:
    reading = read([wish])
    assert not reading.can_make
    assert reading.meets(good)
    assert not reading.meets(bad)


def test_a_remark_about_something_else_is_more_than_the_form() -> None:
    assert not read(["That word means something else in German."]).whole
    assert not read(["Tell me a story with short sentences. One sentence only."]).whole


def test_all_of_a_persons_wishes_hold_and_the_later_of_two_about_the_same_wins() -> None:
    reading = read(["Please answer in three sentences.", "One sentence, please.", "End with Cheers."])
    assert reading.made(REPLY) == "Honey is a sweet food made by bees. Cheers."
    assert not read(["Please answer in one sentence.", "Please talk like a pirate."]).can_make


@pytest.mark.parametrize(
    ("reply", "made"),
    [
        ("The moon is far.", "Well now, the moon is far."),
        ("Bees fly. All bees do.", "Well now, bees fly. All bees do."),
        ("I'm fine.", "Well now, I'm fine."),
        ("Paris is a city.", "Well now, Paris is a city."),
        ("Yes.", "Well now, Yes."),
    ],
)
def test_what_follows_an_opening_is_written_small_where_it_is_no_name(reply: str, made: str) -> None:
    assert read(["Begin with Well now."]).made(reply) == made


def test_points_are_not_numbered_twice() -> None:
    reading = read(["Please answer with a numbered list."])
    assert reading.made("1. Bees make it. 2. It is sweet.") == "1. Bees make it.\n2. It is sweet."


def test_a_reply_that_has_the_form_stays_as_it_is() -> None:
    said = "Well now, honey is sweet."
    assert read(["Please begin with Well now."]).made(said) == said


def test_a_reply_without_a_whole_sentence_cannot_be_cut_to_one() -> None:
    assert read(["Please answer in one sentence."]).made("Honey is a sweet") is None
    assert read(["At most 3 words, please."]).made(REPLY) is None
