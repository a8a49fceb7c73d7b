"""Debian's Chromium, driven by Playwright, and axe to check that everybody can use what it shows."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import scripted_system, wait_until
from tests.conftest import locked

DESKTOP, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}


@pytest.fixture(scope="session")
def axe_source(require: Callable[[str, str], Path]) -> str:
    """axe-core at a pinned version, kept between runs."""
    npm = require("npm", "npm")
    pinned = Path(__file__).with_name("package.json")
    cache = Path(os.environ.get("OPENCLAW_RL_CACHE") or Path.home() / ".cache" / "openclaw-rl")
    folder = cache / "test-axe"
    stamp = folder / "installed.json"
    with locked(folder):
        if not stamp.exists() or stamp.read_text() != pinned.read_text():
            shutil.copy(pinned, folder)
            command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock"]
            subprocess.run(command, cwd=folder, check=True, timeout=300)
            stamp.write_text(pinned.read_text())
    return (folder / "node_modules/axe-core/axe.min.js").read_text()


# Not for the whole session: while it runs, Playwright holds this thread's event loop, and asynchronous
# tests could not have one.
@pytest.fixture(scope="module")
def chromium(require: Callable[[str, str], Path]) -> Iterator[Browser]:
    path = require("chromium", "chromium")
    with sync_playwright() as playwright:
        # As root, Chromium has no sandbox to offer; it only ever sees our own server here.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Visit:
    """A page, what its console complained about, and how to look at it."""

    page: Page
    url: str
    axe_source: str
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on(
            "request",
            lambda r: None if r.url.startswith((self.url, "data:")) else self.problems.append(r.url),
        )

    def sign_in(self, key: str) -> None:
        self.page.goto(self.url)
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("heading", name="Home").wait_for()

    def open(self, name: str) -> None:
        self.page.get_by_role("link", name=name, exact=True).first.click()
        self.page.get_by_role("heading", name=name, level=1).wait_for()

    def check(self) -> None:
        """Usable by everybody, nothing sticks out at the side, and nobody complained."""
        self.page.evaluate(self.axe_source)
        found: Any = self.page.evaluate("axe.run()")
        wrong = [
            f"{rule['id']}: {rule['help']}: {[node['html'][:160] for node in rule['nodes'][:3]]}"
            for rule in found["violations"]
        ]
        assert wrong == [], "\n".join(wrong)
        too_wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert self.page.evaluate(too_wide) <= 0
        assert self.problems == []


@pytest.fixture
def visit(chromium: Browser, axe_source: str) -> Iterator[Callable[..., Visit]]:
    """``visit(url)``, or ``visit(url, phone=True)``: a browser of its own each time."""
    contexts = []

    def start(url: str, *, phone: bool = False, dark: bool = False) -> Visit:
        context = chromium.new_context(
            viewport=PHONE if phone else DESKTOP,
            color_scheme="dark" if dark else "light",
            device_scale_factor=2 if phone else 1,
            has_touch=phone,
        )
        contexts.append(context)
        context.set_default_timeout(60_000)
        return Visit(context.new_page(), url, axe_source)

    yield start
    for context in contexts:
        context.close()


@dataclass
class Live:
    system: ServingSystem
    url: str

    @property
    def key(self) -> str:
        return str(self.system.keys.key_of("default"))


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """A scripted system behind a real socket, in a thread."""
    system = scripted_system(tmp_path / "home")
    config = uvicorn.Config(
        system.app(), host="127.0.0.1", port=0, log_level="error", ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    wait_until(lambda: server.started, "the scripted server listens")
    port = server.servers[0].sockets[0].getsockname()[1]
    yield Live(system, f"http://127.0.0.1:{port}")
    server.should_exit = server.force_exit = True
    thread.join(30)
    assert not thread.is_alive()
