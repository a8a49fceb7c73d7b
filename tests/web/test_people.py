"""The owner's page about people: keys, groups, limits, and complaints that wait for a decision."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.capture.database import writing
from openclaw_rl.capture.shares import HELD, waves
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.testing import wait_until
from openclaw_rl.users import Users

pytestmark = pytest.mark.browser


def status_of(live: Any, key: str, path: str = "/v1/models") -> int:
    return httpx.get(f"{live.url}{path}", headers={"authorization": f"Bearer {key}"}).status_code


def talk(live: Any, key: str) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "What is a buoy?"}]}
    headers = {"authorization": f"Bearer {key}"}
    httpx.post(f"{live.url}/v1/chat/completions", json=body, headers=headers).raise_for_status()


def hold(live: Any, user: str, number: int) -> int:
    """A wave of somebody's complaints about the policy that everybody shares."""
    now = time.time()
    row = {"scope": "everyone", "user": user, "since": now - 7200, "until": now - 60, "number": number}
    with writing(live.system.ledgers.learn.db) as connection:
        return int(connection.execute(waves.insert().values(**row, state=HELD)).inserted_primary_key[0])


def shoot(guest: Any, name: str) -> None:
    """``SCREENSHOTS=folder`` keeps a picture, without the toasts that say what just happened."""
    if folder := os.environ.get("SCREENSHOTS"):
        guest.page.evaluate("document.getElementById('toasts').replaceChildren()")
        guest.page.screenshot(path=Path(folder, f"{name}.png"), full_page=True)


def was_refused(guest: Any) -> None:
    """Chromium notes an answer of 400 in its console; this one was meant."""
    assert [problem for problem in guest.problems if "400 (Bad Request)" not in problem] == []
    assert guest.problems
    guest.problems.clear()


@pytest.mark.parametrize("phone", [False, True])
def test_somebody_is_added_changed_and_removed(live: Any, visit: Callable[..., Any], phone: bool) -> None:
    home, start = live.system.config.home, "phone-" if phone else ""
    guest = visit(live.url, phone=phone)
    guest.sign_in(live.key)
    guest.open("People")
    page = guest.page
    page.get_by_label("Name", exact=True).fill("ann")
    page.get_by_role("button", name="Add").click()
    key = page.get_by_label("Key of ann", exact=True).first
    made = page.locator("#made-key").input_value()
    assert made == KeyRing.in_home(home, create=False).key_of("ann")
    assert key.is_visible()
    guest.check()
    shoot(guest, f"{start}people-key")
    page.get_by_role("button", name="Done").click()
    assert made not in page.content(), "it is shown once"
    talk(live, made)

    ann = page.locator("[data-person=ann]")
    ann.get_by_role("link", name="1 conversation").wait_for()
    assert "own policy" in ann.inner_text()
    assert "no limits" in ann.inner_text()
    ann.get_by_role("button", name="Change").click()
    ann.get_by_label("Group").fill("no such name")
    ann.get_by_label("Requests a minute").fill("20")
    ann.get_by_label("Tokens a day").fill("200000")
    guest.check()
    shoot(guest, f"{start}people-change")
    ann.get_by_role("button", name="Save").click()
    page.get_by_text("is no group").wait_for()
    was_refused(guest)
    ann.get_by_label("Group").fill("writers")
    ann.get_by_role("button", name="Save").click()
    ann.get_by_text("policy of the group writers").wait_for()
    assert "at most 20 requests a minute and 200,000 tokens a day" in ann.inner_text()
    person = Users.in_home(home).of("ann")
    assert (person.group, person.requests_per_minute, person.tokens_per_day) == ("writers", 20, 200_000)
    guest.check()
    shoot(guest, f"{start}people")

    ann.get_by_role("button", name="Remove").click()
    page.get_by_label("Also forget their conversation").check()
    guest.check()
    shoot(guest, f"{start}people-remove")
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    ann.wait_for(state="detached")
    assert status_of(live, made) == 401
    assert live.system.dashboard.count_sessions() == {}
    assert page.locator("[data-person=default]").get_by_role("button", name="Remove").count() == 0

    page.get_by_label("Name", exact=True).fill("ann")
    page.get_by_role("button", name="Add").click()
    page.get_by_role("heading", name="ann had a key before").wait_for()
    was_refused(guest)
    page.get_by_role("button", name="Same person").click()
    assert status_of(live, page.locator("#made-key").input_value()) == 200
    guest.check()


@pytest.mark.parametrize("phone", [False, True])
def test_complaints_wait_for_the_owner(live: Any, visit: Callable[..., Any], phone: bool) -> None:
    talk(live, live.system.keys.add("eve"))
    first, second = hold(live, "eve", 9), hold(live, "mallory", 12)
    guest = visit(live.url, phone=phone)
    guest.sign_in(live.key)
    page = guest.page
    page.get_by_role("link", name="2 waves of complaints").click()
    page.get_by_role("heading", name="People", level=1).wait_for()
    assert "9 complaints about the shared policy" in page.locator(f"[data-wave='{first}']").inner_text()
    guest.check()
    shoot(guest, "phone-waves" if phone else "waves")
    page.locator(f"[data-wave='{first}']").get_by_role("link", name="Read them").click()
    page.get_by_text("Conversations of eve").wait_for()
    assert page.get_by_label("Show").input_value() == "bad"
    guest.check()
    page.get_by_label("Show").select_option("")
    page.get_by_text("What is a buoy?").wait_for()
    guest.open("People")
    page.locator(f"[data-wave='{first}']").get_by_role("button", name="Allow").click()
    page.locator(f"[data-wave='{first}']").wait_for(state="detached")
    page.locator(f"[data-wave='{second}']").get_by_role("button", name="Drop").click()
    page.get_by_role("dialog").get_by_role("button", name="Drop").click()
    page.get_by_text("Earlier decisions").click()
    page.get_by_text("mallory, 12 complaints: dropped").wait_for()
    page.get_by_text("eve, 9 complaints: allowed").wait_for()
    states = {wave["id"]: wave["state"] for wave in live.system.dashboard.waves()}
    assert states == {first: "learned", second: "discarded"}
    guest.check()


def test_nobody_else_sees_the_page(live: Any, visit: Callable[..., Any]) -> None:
    ann = live.system.keys.add("ann")
    hold(live, "eve", 9)
    guest = visit(live.url)
    guest.sign_in(ann)
    assert guest.page.get_by_role("link", name="People").count() == 0
    assert "complaints" not in guest.page.inner_text("main")
    guest.page.goto(f"{live.url}/#/people")
    guest.page.reload()
    guest.page.get_by_role("heading", name="Home", level=1).wait_for()
    assert guest.page.get_by_role("heading", name="People").count() == 0
    guest.check()
    for path in ("/v1/users", "/v1/waves"):
        assert status_of(live, ann, path) == 403
        assert status_of(live, live.key, path) == 200


def test_many_people_are_found_by_name(live: Any, visit: Callable[..., Any]) -> None:
    for number in range(14):
        live.system.keys.add(f"person-{number}")
    guest = visit(live.url, phone=True)
    guest.sign_in(live.key)
    guest.open("People")
    rows = guest.page.locator("[data-person]")
    wait_until(lambda: rows.count() == 15 or None, "everybody is listed")
    guest.page.get_by_label("Find by name or group").fill("person-13")
    wait_until(lambda: rows.count() == 1 or None, "one is found")
    guest.page.get_by_label("Find by name or group").fill("nobody")
    guest.page.get_by_text("Nobody found.").wait_for()
    guest.check()
