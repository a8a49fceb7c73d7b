"""A browser: the agent acts on pages, and checks read the resulting page state.

The agent sees the page's accessibility tree, with a number for each interactive element, and after an action
the changes to the tree. With ``screenshots`` it also sees a picture. It refers to elements by number (in the
easiest tasks by name), or by a position on a grid from 0 to 999.

Tasks are JSON in OSWorld's form: ``instruction``, ``config`` (the page to open, and its data) and an
``evaluator`` that reads the page's state, not the agent's replies.
"""

from __future__ import annotations

import base64
import difflib
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw_rl.envs.browser import ADDRESS, SIZE, check_browser, close_context, open_context
from openclaw_rl.envs.gui_tasks import PAGES, gui_tasks, read_tasks
from openclaw_rl.envs.gui_tree import Element, read_tree
from openclaw_rl.envs.terminal import DONE
from openclaw_rl.envs.tools import Called, call, tool
from openclaw_rl.types import Json, Message, Observation, Outcome, StepResult, Task, Tool

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Page

_SYSTEM = "You use a web page. Do the task with the tools; call done when it is done."
CLICK = tool("click", "Clicks on an element.", element="integer")
TYPE = tool(
    "type", "Writes a text into an element, in place of what is there.", element="integer", text="string"
)
SELECT = tool("select", "Chooses an option of an element.", element="integer", option="string")
CLICK_AT = tool("click_at", "Clicks on a place; x and y from 0 to 999.", x="integer", y="integer")
KEY = tool("key", "Presses a key, such as Enter or Tab.", key="string")
SCROLL = tool("scroll", "Scrolls the page.", direction="string")
SCROLL["parameters"]["properties"]["direction"]["enum"] = ["up", "down"]
WAIT = tool("wait", "Waits a second.")
GIVE_UP = tool("give_up", "Says that the task cannot be done, and ends it.")
ACTIONS = [CLICK, TYPE, SELECT, CLICK_AT, KEY, SCROLL, WAIT, DONE, GIVE_UP]
_USES = ("click", "type", "select")
#: Chooses an option by script, because the browser draws an open list outside the page.
_CHOOSE = """function (wanted) {
  const found = [...(this.options || [])].find((each) => each.text.trim() === wanted.trim());
  if (!found) return [...(this.options || [])].map((each) => each.text).join(", ") || "none";
  this.value = found.value;
  this.dispatchEvent(new Event("input", { bubbles: true }));
  this.dispatchEvent(new Event("change", { bubbles: true }));
  return null;
}"""


class Gui:
    """``tasks``: a JSON or JSONL file with pages beside it; without one, the tasks in this package."""

    def __init__(
        self, tasks: str = "", max_steps: int = 30, screenshots: bool = False, pictures: bool = False
    ) -> None:
        check_browser()
        self._folder = Path(tasks).parent if tasks else PAGES
        self._tasks = read_tasks(Path(tasks)) if tasks else gui_tasks()
        self._max_steps, self._screenshots, self._pictures = max_steps, screenshots, pictures
        self._task: Task | None = None
        self._context: BrowserContext | None = None
        self._steps, self._gave_up = 0, False
        self._lines: list[str] = []
        self._elements: dict[int, Element] = {}
        self._numbers: dict[int, int] = {}

    def tasks(self) -> list[Task]:
        return list(self._tasks)

    async def reset(self, task: Task) -> Observation:
        before, self._task, self._context = self._context, None, None
        self._steps, self._gave_up, self._numbers = 0, False, {}
        opened = task.data["config"][0]["parameters"]
        shown = json.dumps(opened.get("task", {}))
        try:
            self._context = await open_context(self._folder, f"window.task = {shown};")
        finally:
            if before is not None:  # only now: the browser exits with its last context
                await close_context(before)
        self._page: Page = await self._context.new_page()
        self._cdp: CDPSession = await self._context.new_cdp_session(self._page)
        await self._page.goto(ADDRESS + opened["url"])
        self._task = task
        await self._look()
        text = "The page:\n" + "\n".join(self._lines) + f"\n\n{task.data['instruction']}"
        asked: list[Message] = [
            {"role": "system", "content": _SYSTEM}, {"role": "user", "content": await self._seen(text)},
        ]  # fmt: skip
        return Observation(asked, self._offered(), await self._picture())

    async def step(self, action: Message) -> StepResult:
        if self._task is None:
            raise RuntimeError("reset comes first")
        self._steps += 1
        results: list[Message] = []
        known = {each["name"]: (each, lambda **arguments: "") for each in self._offered()}
        for given in action.get("tool_calls") or []:
            read = call(known, given)
            if read.valid and read.name in ("done", "give_up"):
                self._gave_up = read.name == "give_up"
                return StepResult(Observation([], picture=await self._picture()), done=True)
            if read.valid and self._task.data.get("by_name"):
                read = replace(read, arguments={"element": self._named()[read.arguments["element"]]})
            said = await self._act(read) if read.valid else read.message["content"]
            results.append({**read.message, "content": await self._seen(said)})
            if read.valid and self._task.data.get("one_click"):
                return StepResult(Observation(results, picture=await self._picture()), done=True)
        results = results or [{"role": "user", "content": f"Call one of: {', '.join(known)}."}]
        told = Observation(results, self._offered(), await self._picture())
        return StepResult(told, done=self._steps >= self._max_steps)

    def _offered(self) -> list[Tool]:
        """The schemas list the elements present, so a grammar that forces calls allows no others."""
        assert self._task is not None
        names = self._task.data.get("actions") or [each["name"] for each in ACTIONS]
        offered = []
        for each in ACTIONS:
            if each["name"] in names and (self._elements or each["name"] not in _USES):
                copied: Tool = json.loads(json.dumps(each))
                if each["name"] in _USES:
                    named = self._task.data.get("by_name")
                    kind, known = ("string", [*self._named()]) if named else ("integer", [*self._elements])
                    copied["parameters"]["properties"]["element"] = {"type": kind, "enum": known}
                offered.append(copied)
        return offered

    def _named(self) -> dict[str, int]:
        return {element.name: number for number, element in self._elements.items()}

    async def _act(self, read: Called) -> str:
        """The changes to the page. The agent's mistakes are returned as text; browser failures raise."""
        from playwright.async_api import Error

        doing: dict[str, Callable[..., Awaitable[str | None]]] = {
            "click": self._click, "type": self._type, "select": self._select, "click_at": self._click_at,
            "key": self._key, "scroll": self._scroll, "wait": self._wait,
        }  # fmt: skip
        try:
            wrong = await doing[read.name](**read.arguments)
        except Error as error:
            if self._page.is_closed() or "closed" in error.message or "crashed" in error.message:
                raise
            wrong = error.message.partition("\n")[0]
        before = self._lines
        await self._look()
        return f"error: {wrong}" if wrong else _difference(before, self._lines)

    async def _click(self, element: int) -> str | None:
        found = await self._cdp.send("DOM.getBoxModel", {"backendNodeId": self._elements[element].node})
        corners = found["model"]["content"]
        await self._page.mouse.click(sum(corners[::2]) / 4, sum(corners[1::2]) / 4)
        return None

    async def _type(self, element: int, text: str) -> str | None:
        await self._cdp.send("DOM.focus", {"backendNodeId": self._elements[element].node})
        await self._page.keyboard.press("ControlOrMeta+A")
        await self._page.keyboard.insert_text(text)
        return None

    async def _select(self, element: int, option: str) -> str | None:
        node = await self._cdp.send("DOM.resolveNode", {"backendNodeId": self._elements[element].node})
        options = await self._cdp.send("Runtime.callFunctionOn", {
            "objectId": node["object"]["objectId"], "functionDeclaration": _CHOOSE, "returnByValue": True,
            "arguments": [{"value": option}],
        })  # fmt: skip
        there = options["result"].get("value")
        return None if there is None else f"there is no option {option!r}; there is: {there}"

    async def _click_at(self, x: int, y: int) -> str | None:
        if not (0 <= x <= 999 and 0 <= y <= 999):
            return "x and y are from 0 to 999"
        await self._page.mouse.click((x + 0.5) * SIZE["width"] / 1000, (y + 0.5) * SIZE["height"] / 1000)
        return None

    async def _key(self, key: str) -> str | None:
        await self._page.keyboard.press(key)
        return None

    async def _scroll(self, direction: str) -> str | None:
        await self._page.mouse.wheel(0, 500 if direction == "down" else -500)
        return None

    async def _wait(self) -> str | None:
        await self._page.wait_for_timeout(1000)
        return None

    async def _look(self) -> None:
        """Read the page again; an element keeps its number as long as it exists."""
        await self._page.wait_for_load_state("domcontentloaded")
        await self._page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        self._lines, self._elements = await read_tree(self._cdp, self._numbers)

    async def _seen(self, text: str) -> Any:
        if not self._screenshots:
            return text
        picture = base64.b64encode(await self._page.screenshot()).decode()
        shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
        return [{"type": "text", "text": text}, shown]

    async def _picture(self) -> bytes | None:
        return await self._page.screenshot(type="jpeg", quality=50) if self._pictures else None

    async def evaluate(self) -> Outcome:
        if self._task is None:
            return Outcome(-1.0, False, {"steps": self._steps})
        evaluator = self._task.data["evaluator"]
        if evaluator["func"] == "infeasible":
            solved = self._gave_up
        else:
            checks = [await self._check(each) for each in evaluator.get("checks") or [evaluator]]
            solved = all(checks) and not self._gave_up
        return Outcome(1.0 if solved else -1.0, solved, {"steps": self._steps, "gave_up": self._gave_up})

    async def _check(self, check: Json) -> bool:
        """``result`` says what to compare: state, url, text, value or checked."""
        result, expected = check["result"], check.get("expected")
        kind, where = result["type"], result.get("path") or result.get("selector") or ""
        if kind == "state":
            found: Any = await self._page.evaluate("() => window.state")
            for name in filter(None, where.split(".")):
                found = found.get(name) if isinstance(found, dict) else None
        elif kind == "url":
            found = self._page.url.removeprefix(ADDRESS)
        else:
            script = {"text": "e => e.innerText", "value": "e => e.value", "checked": "e => e.checked"}[kind]
            there = await self._page.query_selector(where)
            found = await there.evaluate(script) if there is not None else None
        return str(expected) in str(found) if check["func"] == "contains" else bool(found == expected)

    async def close(self) -> None:
        self._task = None
        if (context := self._context) is not None:
            self._context = None
            await close_context(context)


def _difference(before: list[str], now: list[str]) -> str:
    changed = [line for line in difflib.ndiff(before, now) if line[:1] in "+-"]
    if not changed:
        return "Nothing has changed."
    if len(changed) > len(now):
        return "The page is now:\n" + "\n".join(now)
    return "\n".join(changed)
