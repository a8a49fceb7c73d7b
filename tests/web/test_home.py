"""The first screen answers what people ask first; wishes can be worded anew, paused and forgotten."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.capture.database import writing
from openclaw_rl.capture.samples import samples
from openclaw_rl.capture.wishes import Wishes
from openclaw_rl.testing import wait_until
from openclaw_rl.types import Verdict

pytestmark = pytest.mark.browser


def ask(live: Any, text: str, key: str | None = None) -> str:
    answer = httpx.post(
        f"{live.url}/v1/chat/completions",
        json={"model": "scripted", "messages": [{"role": "user", "content": text}]},
        headers={"authorization": f"Bearer {key or live.key}"},
    )
    return str(answer.json()["id"])


def rate(live: Any, turn_id: str, score: int, user: str = "default") -> None:
    row = {"turn_id": turn_id, "verdict": 1, "user": user, "created_at": time.time(), "policy_version": 0,
           "score": score, "status": "excluded", "strength": 0.0}  # fmt: skip
    learn = live.system.ledgers.learn
    with writing(learn.db) as connection:
        learn._add_verdict(connection, turn_id, Verdict(score, 1.0, "votes"))
        connection.execute(samples.insert().values(row))


def wish(live: Any, turn_id: str, text: str) -> None:
    found = Wishes(live.system.ledgers.learn, lambda new, old: "", lambda new, old: False)
    found.take_up(live.system.ledgers.serve.load_turn(turn_id), text, 0)


def shoot(guest: Any, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        guest.page.screenshot(path=Path(folder, f"{name}.png"), full_page=True)


def test_five_questions_are_answered_on_the_first_screen(live: Any, visit: Callable[..., Any]) -> None:
    ada = live.system.keys.add("ada")
    for number, score in enumerate((-1, 1, 1)):
        rate(live, ask(live, f"Question {number}?"), score)
    rate(live, ask(live, "Ada's question?", ada), -1, "ada")
    wish(live, live.system.ledgers.serve.turns_after(0, 1)[0]["id"], "Answer in one sentence.")
    guest = visit(live.url)
    guest.sign_in(live.key)
    page = guest.page
    headline = page.locator("[data-answer=learning]")
    headline.get_by_text("Answer in one sentence.").wait_for()
    assert "2 of the last 4 first replies were right" in headline.inner_text()
    assert "is being learned" in headline.inner_text()
    answers = {
        name: page.locator(f"[data-answer={name}]").inner_text()
        for name in ("what", "trust", "known", "undo")
    }
    assert "being learned" in answers["what"]
    assert "base model answers" in answers["trust"]
    assert "4 replies in 4 conversations" in answers["known"]
    assert "no version before the base" in answers["undo"]
    assert "2 of 4" in page.get_by_role("region", name="First replies that were right").inner_text()
    guest.check()
    shoot(guest, "home")
    other = visit(live.url, phone=True)
    other.sign_in(ada)
    own = other.page.locator("[data-answer=learning]")
    own.get_by_text("the only first reply that somebody reacted to was wrong").wait_for()
    assert "one sentence" not in other.page.inner_text("main")
    assert "1 reply in 1 conversation" in other.page.locator("[data-answer=known]").inner_text()
    assert other.page.get_by_role("button", name="Go back").count() == 0
    other.check()
    shoot(other, "phone-home")
    guest.open("Sessions")
    page.locator(".dots .down").first.wait_for()
    page.get_by_label("Show").select_option("good")
    wait_until(
        lambda: page.locator(".list > li").count() == 2 or None, "only those with a good reply are listed"
    )
    guest.check()
    shoot(guest, "sessions")


def test_a_wish_is_worded_anew_paused_and_forgotten(live: Any, visit: Callable[..., Any]) -> None:
    turn = ask(live, "What is a lighthouse?")
    wish(live, turn, "Answer in one sentence.")
    guest = visit(live.url, phone=True)
    guest.sign_in(live.key)
    guest.open("Wishes")
    page = guest.page
    card = page.locator(f"[data-wish='{turn}']")
    assert "asked for once" in card.inner_text()
    assert "What is a lighthouse?" in card.inner_text()
    guest.check()
    shoot(guest, "phone-wishes")
    card.get_by_role("button", name="Edit").click()
    card.get_by_label("What should replies be like?").fill("Use at most ten words.")
    guest.check()
    card.get_by_role("button", name="Save").click()
    card.get_by_role("heading", name="Use at most ten words.").wait_for()
    assert "first said as" in card.inner_text()
    card.get_by_role("button", name="Pause").click()
    card.get_by_role("button", name="Try again").wait_for()
    card.get_by_role("button", name="Forget").click()
    page.get_by_role("dialog").get_by_role("button", name="Forget").click()
    page.get_by_text("No wishes yet").wait_for()
    guest.check()


def test_a_reply_is_shown_as_markdown_and_can_be_stopped(live: Any, visit: Callable[..., Any]) -> None:
    live.system.engine.say("Two **things**:\n\n1. one\n2. `two`")
    guest = visit(live.url, phone=True)
    guest.sign_in(live.key)
    guest.open("Try it")
    page = guest.page
    page.locator("summary", has_text="System prompt").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Your message").fill("Tell me.")
    page.keyboard.press("Enter")
    page.locator(".said ol li code").wait_for()
    assert page.locator(".said strong").inner_text() == "things"
    sent = live.system.ledgers.serve.load_turn(live.system.ledgers.serve.turns_after(0, 9)[-1]["id"])
    assert sent.messages[0] == {"role": "system", "content": "Be brief."}
    page.get_by_role("button", name="Bad reply").click()
    box = page.locator(".fix button.primary").bounding_box()
    composer = page.locator(".composer").bounding_box()
    assert box["y"] + box["height"] <= composer["y"], "the form is not behind the composer"
    guest.check()
    shoot(guest, "phone-try-fix")
    page.locator(".fix").get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="New conversation").click()
    page.locator("summary", has_text="Earlier conversations").click()
    page.locator(".chat-more .link", has_text="Tell me.").click()
    page.locator(".said ol li code").wait_for()
    guest.check()
    live.system.engine.say("A long answer", pause_after=6)
    page.get_by_label("Your message").fill("And now?")
    page.keyboard.press("Enter")
    page.get_by_text("A long", exact=True).wait_for()
    page.get_by_role("button", name="Stop").click()
    page.locator(".pill", has_text="stopped").wait_for()
    wait_until(lambda: live.system.engine.num_cancelled or None, "the engine is told")
    assert page.get_by_role("button", name="Send").is_enabled()
