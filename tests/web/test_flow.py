"""The whole promise in a browser: the real server learns from one correction, and can be taken back.

``SCREENSHOTS=docs/img make test-web`` also renews the pictures of docs/dashboard.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.testing import ServerProcess, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.web]
QUESTION = "What is photosynthesis?"
CORRECTION = "Explain it to a child, in one sentence."
#: For the pictures, somebody who wants short answers has been here before.
TALKS = [
    "How do bees make honey?", "What is a noun?", "Why is the sky blue?", "What does a gardener do?",
    "How does a bridge stay up?", "What is a lighthouse for?", "Why do cats purr?", "What is bread made of?",
    "How do boats float?", "What is a volcano?", "Why do leaves turn red?", "What is a compass?",
]  # fmt: skip
SHORT_WORDS = 30


@pytest.fixture(scope="module")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("web") / "home"
    with ServerProcess(home, "--batch-size", "1", "--held-out-share", "0") as server:
        yield server


def shoot(visit: Any, name: str) -> None:
    """The page at its full height, without the toasts that say what just happened."""
    if folder := os.environ.get("SCREENSHOTS"):
        page = visit.page
        before = page.viewport_size
        height = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({**before, "height": min(1600, max(height, before["height"]))})
        page.wait_for_timeout(500)
        page.evaluate("document.getElementById('toasts').replaceChildren(); scrollTo(0, 0)")
        page.screenshot(path=Path(folder, f"{name}.png"))
        page.set_viewport_size(before)


def talk(server: ServerProcess) -> None:
    headers = {"authorization": f"Bearer {server.key}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=120) as client:
        for question in TALKS:
            messages = [{"role": "user", "content": question}]
            for _ in range(2):
                body = {"model": "default", "messages": messages, "max_tokens": 90, "temperature": 0.7}
                reply = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
                short = len(reply["content"].split()) <= SHORT_WORDS
                said = "Perfect, thanks!" if short else "That is too long. One short sentence, please."
                messages += [reply, {"role": "user", "content": said}]
            wait_until(lambda: not client.get("/v1/status").json()["busy"] or None, "it has learned", 240)


def status(server: ServerProcess) -> Any:
    headers = {"authorization": f"Bearer {server.key}"}
    return httpx.get(f"{server.url}/v1/status", headers=headers, timeout=60).json()


@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
def test_one_correction_makes_a_version_and_a_rollback_takes_it_back(
    server: ServerProcess, visit: Callable[..., Any], phone: bool
) -> None:
    if not phone and os.environ.get("SCREENSHOTS"):
        talk(server)
    name = "phone-" if phone else ""
    guest = visit(server.url, phone=phone)
    page = guest.page
    guest.sign_in(server.key)
    before = int(status(server)["policy_version"])

    guest.open("Try it")
    page.get_by_label("Your message").fill(QUESTION)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Bad reply").wait_for()
    page.get_by_role("button", name="Bad reply").click()
    page.get_by_label("What should it have done instead?").fill(CORRECTION)
    shoot(guest, f"{name}try")
    page.locator(".fix button.primary").click()
    page.get_by_text("It will learn from your correction").wait_for()
    # Verdict, sample and version appear by themselves, without anything being reloaded.
    page.locator(".pill", has_text="learned in version").wait_for(timeout=240_000)
    made = int(page.locator(".pill", has_text="learned in version").inner_text().split()[-1])
    assert made > before
    page.locator(".page-head .pill", has_text=f"version {made}").wait_for()
    guest.check()

    guest.open("Now")
    page.get_by_text("took over").wait_for()
    page.get_by_text("0 cut off").or_(page.get_by_text("no replies at the time")).first.wait_for()
    guest.check()
    shoot(guest, f"{name}now")

    guest.open("Sessions")
    page.get_by_label("Search").fill("photosynth")
    page.locator(".list .title", has_text=QUESTION).first.click()
    turn = page.locator("article.turn").first
    turn.locator("[data-verdict]").wait_for()
    assert "explicit feedback" in turn.inner_text()
    assert CORRECTION in turn.inner_text()
    assert f"learned in version {made}" in turn.inner_text()
    turn.get_by_role("button", name="What training changed").click()
    page.get_by_text("This reply was not trained on. Instead, the model learned").wait_for()
    assert page.locator(".taught .bubble.assistant").count() > 0
    page.locator(".tok").first.click()
    page.get_by_text("likely when it was sampled").wait_for()
    guest.check()
    shoot(guest, f"{name}session")

    guest.open("Learning")
    page.get_by_label("Before", exact=True).select_option("0")
    page.get_by_label("After", exact=True).select_option(str(made))
    page.get_by_label("Question", exact=True).fill("How do I boil an egg?")
    page.get_by_role("button", name="Ask both").click()
    for version in (0, made):
        page.locator(f".answer[data-version='{version}']", has_text="words").wait_for()
    old, new = (page.locator(f".answer[data-version='{v}'] .said").inner_text() for v in (0, made))
    assert old
    assert new
    assert old != new
    guest.check()
    shoot(guest, f"{name}learning")

    guest.open("Versions")
    page.locator(f"li[data-version='{made}'] summary").click()
    page.locator(f"li[data-version='{made}'] table").first.wait_for()
    guest.check()
    shoot(guest, f"{name}policies")
    parent = int(status(server)["last_step"]["parent"])
    page.get_by_role("button", name="Roll back").click()
    page.get_by_role("dialog").wait_for()
    guest.check()
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    page.locator(f"li.serving[data-version='{parent}']").wait_for()
    wait_until(lambda: status(server)["policy_version"] == parent or None, "the version before serves")
    guest.check()
    if not phone:
        page.get_by_role("button", name="Dark theme").click()
        guest.open("Learning")
        page.get_by_text("How people reacted").wait_for()
        guest.check()
        shoot(guest, "learning-dark")


def test_an_export_is_asked_for_first_and_lies_where_it_says(
    server: ServerProcess, visit: Callable[..., Any]
) -> None:
    guest = visit(server.url)
    guest.sign_in(server.key)
    guest.open("Versions")
    guest.page.get_by_role("button", name="Export").last.click()
    guest.page.get_by_role("dialog").get_by_role("button", name="Export").click()
    guest.page.get_by_text("MB in").wait_for()
    assert list((server.home / "exports").glob("version-*-peft/adapter_model.safetensors"))
    guest.check()


def test_a_server_stops_although_somebody_is_looking(tmp_path: Path, model_path: Path) -> None:
    server = ServerProcess(tmp_path / "home", "--no-learn").start()
    headers = {"authorization": f"Bearer {server.key}"}
    with httpx.stream("GET", f"{server.url}/v1/events", headers=headers, timeout=30) as events:
        assert next(events.iter_lines()) == "event: status"
        assert server.stop(timeout_s=20) == 0
