"""The first screen answers what people ask first; wishes can be worded anew, paused and forgotten."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.capture.database import writing
from openclaw_rl.capture.samples import policies, samples
from openclaw_rl.capture.wishes import Wishes
from openclaw_rl.serve.choice import fraction
from openclaw_rl.testing import wait_until
from openclaw_rl.types import EVERYONE, Verdict
from tests.serve.test_choice import request

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


def serve_version(live: Any, version: int, scope: str) -> None:
    """One that passed its checks, chosen for a scope."""
    checks = [{"name": "facts", "value": 1.0, "bound": 0.5, "passed": True},
              {"name": "broken replies", "value": 0.0, "bound": 0.1, "passed": True},
              {"name": "length", "value": 0.7, "bound": 0.7, "passed": True, "side": "at most"}]  # fmt: skip
    row = {"version": version, "parent": 0, "status": "retired", "created_at": time.time(), "num_samples": 1,
           "config_hash": "", "metrics": "{}", "gate": json.dumps({"passed": True, "checks": checks}),
           "scope": scope}  # fmt: skip
    with writing(live.system.ledgers.learn.db) as connection:
        connection.execute(policies.insert().values(row))
    live.system.store.write(
        version,
        lambda folder: (folder / "adapter_model.safetensors").write_bytes(b""),
        {"version": version, "scope": scope, "parent": 0},
    )
    headers = {"authorization": f"Bearer {live.key}"}
    url = f"{live.url}/v1/policies/{version}/promote"
    httpx.post(url, params={"scope": scope}, headers=headers).raise_for_status()


def shoot(guest: Any, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        guest.page.screenshot(path=Path(folder, f"{name}.png"), full_page=True)


def below_the_fold(page: Any) -> list[str]:
    """Answers that cannot be read in full without scrolling; on a phone, the navigation covers the bottom."""
    return list(
        page.evaluate("""() => {
            const rail = document.querySelector(".rail").getBoundingClientRect();
            const bottom = rail.top > 0 ? rail.top : innerHeight;
            return [...document.querySelectorAll("[data-answer]")]
                .filter((one) => one.getBoundingClientRect().bottom > bottom)
                .map((one) => one.dataset.answer);
        }""")
    )


def test_five_questions_are_answered_on_the_first_screen(live: Any, visit: Callable[..., Any]) -> None:
    ada = live.system.keys.add("ada")
    for number, score in enumerate((-1, 1, 1)):
        rate(live, ask(live, f"Question {number}?"), score)
    rate(live, ask(live, "Ada's question?", ada), -1, "ada")
    turns = [turn["id"] for turn in live.system.ledgers.serve.turns_after(0, 9)]
    wish(live, turns[0], "Answer in one sentence.")
    wish(live, turns[3], "Answer in French.")
    guest = visit(live.url)
    guest.sign_in(live.key)
    page = guest.page
    headline = page.locator("[data-answer=learning]")
    headline.get_by_text("Answer in one sentence").wait_for()
    assert "2 of your last 3 first replies were right" in headline.inner_text()
    assert "French" not in headline.inner_text(), "that is Ada's wish"
    assert "is being learned" in headline.inner_text()
    answers = {
        name: page.locator(f"[data-answer={name}]").inner_text()
        for name in ("what", "trust", "known", "undo")
    }
    assert "being learned" in answers["what"]
    assert "including 1 from other people" in answers["what"]
    assert "base model answers" in answers["trust"]
    assert "4 replies in 4 conversations and 2 wishes, from everybody" in answers["known"]
    assert "nothing to go back to" in answers["undo"]
    assert "2 of 3" in page.get_by_role("region", name="First replies to you that were right").inner_text()
    assert below_the_fold(page) == []
    guest.check()
    shoot(guest, "home")
    other = visit(live.url, phone=True)
    other.sign_in(ada)
    own = other.page.locator("[data-answer=learning]")
    own.get_by_text("the only first reply you reacted to was wrong").wait_for()
    assert "French" in own.inner_text()
    assert "one sentence" not in other.page.inner_text("main")
    assert "1 reply in 1 conversation" in other.page.locator("[data-answer=known]").inner_text()
    assert other.page.get_by_role("button", name="Go back").count() == 0
    assert below_the_fold(other.page) == []
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


def test_going_back_is_about_the_version_that_answers_you(live: Any, visit: Callable[..., Any]) -> None:
    """The owner sees everybody's versions elsewhere; here another person's must not be taken for theirs."""
    live.system.keys.add("ada")
    for version, scope in ((1, EVERYONE), (2, "user:ada")):
        serve_version(live, version, scope)
    guest = visit(live.url)
    guest.sign_in(live.key)
    page = guest.page
    page.locator("[data-answer=trust]").get_by_text("Version 1 answers").wait_for()
    page.get_by_role("button", name="Go back to the base").click()
    page.get_by_role("dialog").get_by_role("button", name="Go back").click()
    page.locator("[data-answer=trust]").get_by_text("base model answers").wait_for()
    serving = live.system.ledgers.policies.serving
    assert (serving(EVERYONE), serving("user:ada")) == (0, 2)
    guest.check()
    guest.open("Versions")
    page.locator("li.serving[data-version='0']").wait_for()
    assert page.locator("li[data-version='2']").count() == 0
    page.get_by_label("Whose versions").select_option("Of ada")
    page.locator("li.serving[data-version='2']").wait_for()
    guest.check()
    page.get_by_role("button", name="Roll back").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    page.locator("li.serving[data-version='0']").wait_for()
    assert serving("user:ada") == 0
    page.locator("li[data-version='2']").get_by_role("button", name="Serve this").click()
    page.get_by_role("dialog").get_by_role("button", name="Serve it").click()
    page.locator("li.serving[data-version='2']").wait_for()
    assert (serving(EVERYONE), serving("user:ada")) == (0, 2)
    guest.check()


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
    assert "originally “Answer in one sentence.”" in card.inner_text()
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


def test_checks_say_which_side_of_the_limit_is_right(live: Any, visit: Callable[..., Any]) -> None:
    serve_version(live, 1, EVERYONE)
    guest = visit(live.url)
    guest.sign_in(live.key)
    guest.open("Learning")
    guest.page.get_by_text("1.00, at least 0.50").wait_for()
    guest.page.get_by_text("0.00, at most 0.10").wait_for()
    guest.page.get_by_text("0.70, at most 0.70").wait_for()


def compared() -> str:
    """A question whose conversation stays with the previous version for a while."""
    asked = (f"What is a comet? ({number})" for number in range(1000))
    return next(text for text in asked if fraction(request(text, user="default")) < 0.05)


def test_a_reply_of_the_previous_version_says_why(live: Any, visit: Callable[..., Any]) -> None:
    ask(live, "What is a lighthouse?")
    serve_version(live, 1, EVERYONE)
    guest = visit(live.url)
    guest.sign_in(live.key)
    guest.open("Try it")
    for question, number in (("What is a lighthouse?", 0), (compared(), 1)):
        guest.page.get_by_role("button", name="New conversation").click()
        guest.page.get_by_label("Your message").fill(question)
        guest.page.keyboard.press("Enter")
        guest.page.get_by_role("button", name="Bad reply").wait_for()
        assert guest.page.get_by_text("stays with the previous version").count() == number
    guest.check()


def test_a_reply_of_another_server_is_none_of_an_earlier_version(
    live: Any, visit: Callable[..., Any]
) -> None:
    """Where the model here takes over from another server, new conversations may still go there."""

    def from_elsewhere(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, headers={**answer.headers, "x-policy-version": "-1"})

    guest = visit(live.url)
    guest.sign_in(live.key)
    guest.open("Try it")
    guest.page.route("**/v1/chat/completions", from_elsewhere)
    guest.page.get_by_label("Your message").fill("What is a lighthouse?")
    guest.page.keyboard.press("Enter")
    guest.page.get_by_role("button", name="Bad reply").wait_for()
    assert guest.page.locator(".pill", has_text="the other model").count() == 1
    assert guest.page.get_by_text("stays with the previous version").count() == 0
