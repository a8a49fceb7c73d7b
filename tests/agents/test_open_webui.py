"""Open WebUI's own page, in a browser, in front of the default model."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import sync_playwright

from openclaw_rl.testing import ServerProcess, clean_environment, command, wait_until
from tests.openclaw.client import free_port

pytestmark = pytest.mark.open_webui
PROGRAM = Path(__file__).parents[2] / ".cache" / "open-webui" / "bin" / "open-webui"
PERSON = {"name": "Ada", "email": "ada@example.com", "password": "correct horse"}


@pytest.fixture
def server(model_path: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "home", "--no-learn", "--default-max-tokens", "60") as server:
        yield server


@pytest.fixture
def page_url(server: ServerProcess, tmp_path: Path) -> Iterator[str]:
    """Started with the line that ``connect`` prints for it."""
    said = subprocess.run(
        [command(), "connect", "open-webui"],
        env=clean_environment(server.home), capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    line = said.split("Without a container:")[1].split("open-webui serve")[0].replace("\\\n", " ")
    settings = dict(word.split("=", 1) for word in shlex.split(line))
    port = free_port()
    environment = {
        **os.environ, **settings, "HOME": str(tmp_path), "DATA_DIR": str(tmp_path / "data"),
        "OFFLINE_MODE": "true", "HF_HUB_OFFLINE": "1", "WEBUI_SECRET_KEY": "0" * 32, "DO_NOT_TRACK": "true",
    }  # fmt: skip
    log = tmp_path / "open-webui.log"
    (tmp_path / "data").mkdir()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PROGRAM, "serve", "--host", "127.0.0.1", "--port", str(port)],
            env=environment, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def is_up() -> bool | None:
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).is_success or None
        except httpx.TransportError:
            return None

    try:
        wait_until(is_up, "Open WebUI answers", 180)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def test_two_messages_in_its_page_are_one_session(
    server: ServerProcess, page_url: str, require: Callable[[str, str], Path]
) -> None:
    assert httpx.post(f"{page_url}/api/v1/auths/signup", json=PERSON, timeout=60).is_success
    with sync_playwright() as playwright:
        # As root, Chromium has no sandbox to offer; it only ever sees programs of this machine here.
        path = require("chromium", "chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.goto(f"{page_url}/auth")
        page.locator("input[type=email]").fill(PERSON["email"])
        page.locator("input[type=password]").fill(PERSON["password"])
        page.locator("button[type=submit]").click()
        page.locator("#chat-input").wait_for()
        page.keyboard.press("Escape")  # what is new
        for number, text in enumerate(("What is a lighthouse?", "Shorter, please."), 1):
            page.locator("#chat-input").click()
            page.keyboard.type(text)
            page.keyboard.press("Enter")
            wait_until(lambda n=number: len(turns(server)) == n or None, f"reply {number} is stored", 120)
        # It draws Markdown, so only words are the same there.
        words = re.findall(r"[A-Za-z]+", turns(server)[1]["reply"]["content"])
        page.get_by_text(max(words, key=len)).last.wait_for()
        browser.close()
    first, second = turns(server)
    assert first["next_state"] == [{"role": "user", "content": "Shorter, please."}]
    assert second["continues"] == first["id"]
    assert first["prompt_tokens"] < 200
    # Titles, tags and suggestions are asked for beside it.
    wait_until(lambda: kinds(server).count("side") >= 2 or None, "what it asks for on the side", 120)
    assert kinds(server).count("main") == 1


def get(server: ServerProcess, path: str, **params: Any) -> Any:
    headers = {"authorization": f"Bearer {server.key}"}
    return httpx.get(f"{server.url}{path}", headers=headers, params=params, timeout=60).json()


def turns(server: ServerProcess) -> list[dict[str, Any]]:
    """Of the conversation itself."""
    sessions = get(server, "/v1/sessions")["data"]
    found = [session["id"] for session in sessions if session["title"] == "What is a lighthouse?"]
    return get(server, f"/v1/sessions/{found[-1]}", text="true")["turns"] if found else []


def kinds(server: ServerProcess) -> list[str]:
    sessions = [session["id"] for session in get(server, "/v1/sessions")["data"]]
    return [turn["kind"] for one in sessions for turn in get(server, f"/v1/sessions/{one}")["turns"]]
