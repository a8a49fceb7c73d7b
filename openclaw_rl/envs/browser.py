"""Chromium in a sandbox: no network, none of the host's files, and pages served from a folder.

It is controlled over a pipe, so that needs no network either. One browser serves all episodes of an event
loop, each with its own context; it exits with the last of them.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from openclaw_rl.envs.sandbox import enclosed

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright, Route

ADDRESS = "http://tasks.invalid/"
SIZE = {"width": 1000, "height": 700}
_FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--user-data-dir=/tmp/profile", "--no-first-run",
    "--no-sandbox",  # it already runs in bubblewrap, where its own sandbox cannot start
    "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--disable-extensions", "--mute-audio", "--force-color-profile=srgb",
    "--force-renderer-accessibility", "about:blank",
)  # fmt: skip
_KINDS = {
    ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg", ".json": "application/json",
}  # fmt: skip


class _Shared:
    def __init__(self) -> None:
        self.lock, self.users = asyncio.Lock(), 0
        self.playwright: Playwright | None = None
        self.browser: Browser | None = None


_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


def check_browser() -> str:
    """The path of Chromium; ValueError, with the remedy, if it or Playwright is missing."""
    try:
        import playwright.async_api  # noqa: F401
    except ImportError:
        raise ValueError("the gui environment needs Playwright: pip install 'openclaw-rl[gui]'") from None
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    raise ValueError("the gui environment needs a browser: sudo apt-get install chromium (Debian)")


async def open_context(folder: Path, before: str) -> BrowserContext:
    """A context whose pages come from ``folder``; the script ``before`` runs before the pages' own."""
    shared = _SHARED.setdefault(asyncio.get_running_loop(), _Shared())
    async with shared.lock:
        if shared.browser is None or not shared.browser.is_connected():
            await _stop(shared)
            await _start(shared)
        assert shared.browser is not None
        context = await shared.browser.new_context(viewport=SIZE, accept_downloads=False)  # type: ignore[arg-type]
        shared.users += 1
    await context.route("**/*", lambda route: _answer(route, folder))
    await context.add_init_script(before)
    return context


async def close_context(context: BrowserContext) -> None:
    shared = _SHARED[asyncio.get_running_loop()]
    try:
        await context.close()
    finally:
        async with shared.lock:
            shared.users -= 1
            if not shared.users:
                await _stop(shared)


async def _start(shared: _Shared) -> None:
    chromium = check_browser()
    from playwright.async_api import async_playwright

    wanted = [folder for folder in ("/etc/fonts", "/etc/chromium.d", "/opt/google") if Path(folder).exists()]
    command = [*enclosed(512, wanted), chromium, *_FLAGS]
    shared.playwright = await async_playwright().start()
    shared.browser = await shared.playwright.chromium.launch(
        executable_path=command[0], args=command[1:], ignore_default_args=True, timeout=60_000
    )


async def _stop(shared: _Shared) -> None:
    browser, playwright = shared.browser, shared.playwright
    shared.browser = shared.playwright = None
    if browser is not None:
        await browser.close()
    if playwright is not None:
        await playwright.stop()


async def _answer(route: Route, folder: Path) -> None:
    """Serve a file from the folder; abort every other request."""
    url = route.request.url.partition("?")[0].partition("#")[0]
    path = (folder / url.removeprefix(ADDRESS)).resolve()
    inside = url.startswith(ADDRESS) and path.is_relative_to(folder.resolve())
    if inside and path.suffix in _KINDS and path.is_file():
        await route.fulfill(body=path.read_bytes(), content_type=_KINDS[path.suffix])
    else:
        await route.abort()
