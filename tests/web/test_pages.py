"""Every page in a real browser, on a scripted engine: quick enough for every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.browser
PAGES = ("Home", "Wishes", "Sessions", "Try it", "Learning", "Versions", "People", "Now")
NASTY = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script><b>bold</b>'


def ask(live: Any, text: str, key: str | None = None, **headers: str) -> httpx.Response:
    return httpx.post(
        f"{live.url}/v1/chat/completions",
        json={"model": "scripted", "messages": [{"role": "user", "content": text}]},
        headers={"authorization": f"Bearer {key or live.key}", **headers},
    )


@pytest.mark.parametrize(("phone", "dark"), [(False, False), (False, True), (True, False), (True, True)])
def test_every_page_is_usable(live: Any, visit: Callable[..., Any], phone: bool, dark: bool) -> None:
    ask(live, "What is a lighthouse?")
    guest = visit(live.url, phone=phone, dark=dark)
    guest.page.goto(live.url)
    guest.page.get_by_label("API key").wait_for()
    guest.check()
    guest.sign_in(live.key)
    for name in PAGES:
        guest.open(name)
        guest.check()
    guest.open("Sessions")
    guest.page.get_by_text("What is a lighthouse?").click()
    guest.page.get_by_text("Hello!").wait_for()
    guest.page.get_by_role("button", name="What training changed").click()
    guest.page.get_by_text("No training step used this reply").wait_for()
    guest.check()


def test_a_wrong_key_is_said_and_a_right_one_lasts(live: Any, visit: Callable[..., Any]) -> None:
    guest = visit(live.url)
    guest.page.goto(live.url)
    guest.page.get_by_label("API key").fill("sk-wrong")
    guest.page.get_by_role("button", name="Sign in").click()
    guest.page.get_by_text("This API key is not known here").wait_for()
    guest.sign_in(live.key)
    assert "sk-" not in str(guest.page.evaluate("document.cookie + JSON.stringify(localStorage)"))
    guest.page.reload()
    guest.page.get_by_role("heading", name="Home").wait_for()
    guest.page.get_by_role("button", name="Sign out").click()
    guest.page.get_by_label("API key").wait_for()


def test_stored_html_never_runs(live: Any, visit: Callable[..., Any]) -> None:
    live.system.engine.say(NASTY)
    ask(live, NASTY, **{"x-session-id": NASTY.replace("<", "").replace(">", "").replace('"', "")[:20]})
    turn = live.system.ledgers.serve.turns_after(0, 10)[-1]["id"]
    headers = {"authorization": f"Bearer {live.key}"}
    httpx.post(f"{live.url}/v1/feedback", json={"id": turn, "rating": "down", "text": NASTY}, headers=headers)
    guest = visit(live.url)
    guest.sign_in(live.key)
    guest.open("Sessions")
    guest.page.locator(".list .title").first.click()
    guest.page.locator(".bubble.assistant").wait_for()
    assert NASTY in guest.page.locator(".bubble.assistant").inner_text()
    guest.page.get_by_role("button", name="What training changed").click()
    guest.page.locator(".tokens").wait_for()
    live.system.engine.say(NASTY)
    guest.open("Try it")
    guest.page.get_by_label("Your message").fill(NASTY)
    guest.page.keyboard.press("Enter")
    guest.page.get_by_role("button", name="Good reply").wait_for()
    assert guest.page.evaluate("window.pwned") is None
    assert guest.page.locator("main img, main script, main b:text('bold')").count() == 0
    guest.check()


def test_everybody_sees_their_own(live: Any, visit: Callable[..., Any]) -> None:
    ada, bob = live.system.keys.add("ada"), live.system.keys.add("bob")
    ask(live, "Ada's secret question", ada)
    ask(live, "Bob's own question", bob)
    guest = visit(live.url)
    guest.sign_in(bob)
    guest.open("Sessions")
    guest.page.get_by_text("Bob's own question").wait_for()
    assert guest.page.get_by_text("Ada's secret").count() == 0
    guest.open("Versions")
    assert guest.page.get_by_role("button", name="Roll back").count() == 0
    owner = visit(live.url)
    owner.sign_in(live.key)
    owner.open("Sessions")
    owner.page.get_by_text("Ada's secret question").wait_for()
    owner.page.get_by_text("Bob's own question").wait_for()


def test_an_exclusion_is_asked_for_first_and_can_be_taken_back(live: Any, visit: Callable[..., Any]) -> None:
    ask(live, "What is a lighthouse?", **{"x-session-id": "private"})
    ask(live, "And a buoy?", **{"x-session-id": "private"})

    def excluded() -> list[bool]:
        found = live.system.dashboard.session("private", None, None, None, False)
        return [found["excluded"], *(turn["excluded"] for turn in found["turns"])]

    guest = visit(live.url)
    guest.sign_in(live.key)
    guest.open("Sessions")
    page = guest.page
    page.get_by_text("What is a lighthouse?").click()
    turn = page.locator("article.turn").first
    turn.get_by_role("button", name="Exclude turn").click()
    assert excluded() == [False, False, False]
    page.get_by_role("dialog").get_by_role("button", name="Exclude").click()
    turn.get_by_role("button", name="Include turn").wait_for()
    assert excluded() == [False, True, False]
    guest.check()
    turn.get_by_role("button", name="Include turn").click()
    turn.get_by_role("button", name="Exclude turn").wait_for()
    assert excluded() == [False, False, False]

    page.get_by_role("button", name="Exclude session").click()
    page.get_by_role("dialog").get_by_role("button", name="Exclude").click()
    page.get_by_role("button", name="Include turn").nth(1).wait_for()
    assert excluded() == [True, True, True]
    page.reload()
    page.get_by_role("button", name="Include session").click()
    page.get_by_role("button", name="Exclude turn").nth(1).wait_for()
    assert excluded() == [False, False, False]
    page.get_by_role("button", name="Exclude session").wait_for()
    guest.check()


def test_a_page_that_loads_takes_no_focus_from_somebody_who_went_on(
    live: Any, visit: Callable[..., Any]
) -> None:
    guest, held = visit(live.url), list[Any]()
    guest.page.route("**/v1/learning**", lambda route: held.append(route))
    with guest.page.expect_request("**/v1/learning**"):
        guest.sign_in(live.key)
    link = guest.page.get_by_role("link", name="Try it").first
    link.focus()
    with guest.page.expect_response("**/v1/learning**"):
        held[0].continue_()
    guest.page.locator(".answers-first .card").first.wait_for()
    assert link.evaluate("link => link === document.activeElement")


def test_a_page_that_was_left_does_not_appear_on_the_next(live: Any, visit: Callable[..., Any]) -> None:
    guest, held = visit(live.url), list[Any]()
    guest.page.route("**/v1/learning**", lambda route: held.append(route))
    with guest.page.expect_request("**/v1/learning**"):
        guest.sign_in(live.key)
    guest.open("Sessions")
    with guest.page.expect_response("**/v1/learning**"):
        held[0].fulfill(status=500, json={"error": {"message": "no", "type": "server_error"}})
    guest.page.get_by_role("searchbox").fill("nothing")
    assert guest.page.get_by_role("heading", level=1).all_inner_texts() == ["Sessions"]
    assert not guest.page.get_by_text("could not be loaded").count()


def test_the_keyboard_is_enough(live: Any, visit: Callable[..., Any]) -> None:
    guest = visit(live.url)
    guest.page.goto(live.url)
    guest.page.get_by_label("API key").focus()
    guest.page.keyboard.type(live.key)
    guest.page.keyboard.press("Enter")
    guest.page.get_by_role("heading", name="Home").wait_for()
    guest.page.get_by_role("link", name="Try it").focus()
    guest.page.keyboard.press("Enter")
    guest.page.get_by_role("heading", name="Try it").wait_for()
    guest.page.keyboard.type("Hello there")
    guest.page.keyboard.press("Enter")
    guest.page.get_by_role("button", name="Bad reply").wait_for()
    guest.page.get_by_role("button", name="Bad reply").focus()
    guest.page.keyboard.press("Enter")
    guest.page.keyboard.type("Be brief.")
    guest.page.keyboard.press("Tab")
    guest.page.keyboard.press("Enter")
    guest.page.get_by_text("It will learn from your correction").wait_for()
    guest.check()
