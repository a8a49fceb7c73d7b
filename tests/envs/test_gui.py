"""A browser in a sandbox: what the agent sees, what its actions do, and where no page gets to."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Error

from openclaw_rl.envs import create_environment
from openclaw_rl.envs.browser import check_browser
from openclaw_rl.envs.gui import Gui
from openclaw_rl.envs.gui_tasks import gui_tasks, read_tasks
from openclaw_rl.envs.tasks import SPLITS, of_split
from openclaw_rl.testing.contracts import EnvironmentContract
from openclaw_rl.types import Environment, Message, StepResult, Task
from tests.envs.test_built_in import calls

needs_browser = pytest.mark.skipif(
    not (shutil.which("bwrap") and shutil.which("chromium")) and not os.environ.get("CI"),
    reason="bubblewrap or Chromium is not installed",
)


def first(template: str) -> Task:
    return next(task for task in gui_tasks() if task.data["template"] == template)


def expected(task: Task) -> Any:
    return task.data["evaluator"]["checks"][0]["expected"]


@pytest.fixture
async def gui() -> AsyncIterator[Gui]:
    made = Gui()
    yield made
    await made.close()


def page(task: Task) -> dict[str, Any]:
    shown: dict[str, Any] = task.data["config"][0]["parameters"]["task"]
    return shown


def solution(task: Task) -> list[Message]:
    """By element, as the numbers of a page that was just opened are."""
    shown, kind = page(task), task.data["config"][0]["parameters"]["url"]
    if task.data["evaluator"]["func"] == "infeasible":
        return [calls(("give_up", {}))]
    wanted, done = expected(task), calls(("done", {}))
    if kind == "choose.html":
        return [calls(("click", {"element": wanted}))]
    made: list[Message] = []
    if kind == "form.html":
        for number, field in enumerate(shown["fields"], 1):
            made += _enter(number, field, wanted[field["name"]])
        return [*made, calls(("click", {"element": len(shown["fields"]) + 1})), done]
    if kind == "search.html":
        word = wanted.split()[-1]
        enter = [calls(("type", {"element": 1, "text": word})), calls(("key", {"key": "Enter"}))]
        return [*enter, calls(("click", {"element": 3})), done]
    if kind == "settings.html":
        for number, (name, value) in enumerate(shown["settings"].items(), 1):
            before = value["value"] if isinstance(value, dict) else value
            if wanted[name] != before:
                field = (
                    {"name": name, "options": value["options"]}
                    if isinstance(value, dict)
                    else {"type": "checkbox"}
                )
                made += _enter(number, field, wanted[name] if isinstance(value, dict) else True)
        return [*made, calls(("click", {"element": len(shown["settings"]) + 1})), done]
    if kind == "wizard.html":
        for number, step in enumerate(shown["steps"]):
            start = 1 + 2 * number + max(0, number - 1)
            made += [*_enter(start, step, wanted[step["name"]]), calls(("click", {"element": start + 1}))]
        return [*made, done]
    goods = list(shown["goods"])
    basket = wanted.get("goods", wanted)
    for name, times in basket.items():
        made += [calls(("click", {"element": goods.index(name) + 1}))] * times
    if "name" in wanted:  # the cart has a name, an order button and one to remove each thing
        made += [calls(("type", {"element": len(goods) + 2, "text": wanted["name"]}))]
        made += [calls(("click", {"element": len(goods) + 3}))]
    return [*made, done]


def _enter(number: int, field: dict[str, Any], value: Any) -> list[Message]:
    if field.get("type") == "checkbox":
        return [calls(("click", {"element": number}))] if value else []
    if "options" in field:
        return [calls(("select", {"element": number, "option": value}))]
    return [calls(("type", {"element": number, "text": value}))]


def said(result: StepResult) -> str:
    return str(result.observation.messages[0]["content"])


def test_there_are_enough_tasks_and_no_template_is_in_two_splits() -> None:
    tasks = gui_tasks()
    assert len(tasks) >= 200
    templates = [{task.data["template"] for task in of_split(tasks, split)} for split in SPLITS]
    assert not templates[0] & (templates[1] | templates[2])
    assert not templates[1] & templates[2]
    assert {"button", "link", "checkbox", "radio", "tab"} == {
        page(task)["kind"] for task in tasks if task.data["difficulty"] == 1
    }


@needs_browser
async def test_what_is_seen_done_and_checked(gui: Gui) -> None:
    task = first("order")
    seen = await gui.reset(task)
    goods, wanted = list(page(task)["goods"]), expected(task)
    [name] = wanted["goods"]
    number = goods.index(name) + 1
    assert f'[{number}] button "Add {name}"' in seen.messages[-1]["content"]
    click = next(tool for tool in seen.tools if tool["name"] == "click")
    assert click["parameters"]["properties"]["element"]["enum"] == [1, 2, 3]
    assert "must be one of 1, 2, 3" in said(await gui.step(calls(("click", {"element": 9}))))
    changed = said(await gui.step(calls(("click", {"element": number}))))
    assert f'+ text "1 × {name}"' in changed
    assert '- text "It is empty."' in changed
    assert f'[{number}] button "Add {name}"' not in changed, "only what has changed"
    assert said(await gui.step(calls(("scroll", {"direction": "up"})))) == "Nothing has changed."
    assert "error: " in said(await gui.step(calls(("key", {"key": "NoSuchKey"}))))
    assert "0 to 999" in said(await gui.step(calls(("click_at", {"x": 5, "y": 1000}))))
    assert not (await gui.evaluate()).solved
    for action in solution(task)[1:-1]:
        result = await gui.step(action)
    assert '+ text "Ordered."' in said(result)
    assert (await gui.evaluate()).solved
    assert (await gui.step(calls(("give_up", {})))).done
    assert not (await gui.evaluate()).solved, "who gives up has not done it"


@needs_browser
async def test_what_cannot_be_done_is_solved_by_saying_so_alone(gui: Gui) -> None:
    task = first("missing")
    gui._max_steps = 2
    await gui.reset(task)
    await gui.step({"role": "assistant", "content": "give_up, it is infeasible"})
    assert (await gui.step(calls(("click", {"element": 1})))).done, "the steps have run out"
    assert not (await gui.evaluate()).solved
    await gui.reset(task)
    await gui.step(calls(("done", {})))
    assert not (await gui.evaluate()).solved
    await gui.reset(task)
    await gui.step(calls(("give_up", {})))
    assert (await gui.evaluate()).solved


SPY = """<!doctype html><main></main><script>
window.state = {};
const tries = {
  file: () => fetch("file:///etc/hostname"),
  network: () => fetch("http://127.0.0.1:PORT/"),
  image: () => new Promise((good, bad) => Object.assign(new Image(),
    {onload: good, onerror: bad, src: "http://127.0.0.1:PORT/x.png"})),
  socket: () => new Promise((good, bad) => Object.assign(new WebSocket("ws://127.0.0.1:PORT/"),
    {onopen: good, onerror: bad})),
  above: () => fetch("/../secret.json").then((r) => r.text()),
  encoded: () => fetch("/..%2fsecret.json").then((r) => r.text()),
  beacon: () => { if (!navigator.sendBeacon("http://127.0.0.1:PORT/")) throw 1; },
  frame: () => new Promise((good, bad) => { const f = document.createElement("iframe"); f.src = "file:///etc/passwd";
    f.onload = () => { try { f.contentDocument.body.innerText.includes("root") ? good() : bad(); }
      catch { bad(); } };
    document.body.append(f); setTimeout(bad, 500); }),
};
Promise.all(Object.entries(tries).map(async ([name, act]) => {
  try { await act(); state[name] = "reached"; } catch { state[name] = "failed"; }
})).then(() => { state.over = true; });
</script>"""


@needs_browser
async def test_a_page_gets_nowhere(tmp_path: Path) -> None:
    reached: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append((await reader.readline()).decode())
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    folder = tmp_path / "tasks"
    folder.mkdir()
    (tmp_path / "secret.json").write_text('{"secret": 1}')
    (folder / "spy.html").write_text(SPY.replace("PORT", str(port)))
    checks = {"func": "equal", "result": {"type": "state", "path": "over"}, "expected": True}
    row = {
        "instruction": "?",
        "config": [{"type": "open", "parameters": {"url": "spy.html"}}],
        "evaluator": checks,
    }
    (folder / "tasks.json").write_text(json.dumps([row]))
    env = Gui(str(folder / "tasks.json"))
    try:
        await env.reset(env.tasks()[0])
        await env._page.wait_for_function("window.state.over === true")
        found = await env._page.evaluate("window.state")
        # A beacon is sent without an answer: only whether it arrives can be seen.
        assert {name for name, became in found.items() if became == "reached"} <= {"beacon"}
        assert env._context is not None
        await env._context.unroute_all()  # the sandbox alone must be enough
        for url in ("file:///etc/passwd", f"file://{tmp_path}/secret.json", f"http://127.0.0.1:{port}/"):
            with pytest.raises(Error, match=r"ERR_FILE_NOT_FOUND|ERR_CONNECTION_REFUSED|ERR_INTERNET_DISCON"):
                await env._page.goto(url)
    finally:
        await env.close()
        listener.close()
    assert reached == []


@needs_browser
async def test_pictures_are_shown_to_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCREENSHOT_BACKEND", "screenshot")
    env = create_environment("gui")
    try:
        seen = await env.reset(first("press"))
        text, picture = seen.messages[-1]["content"]
        assert "Press the button" in text["text"]
        data = base64.b64decode(picture["image_url"]["url"].partition(",")[2])
        assert data.startswith(b"\x89PNG")
    finally:
        await env.close()
    monkeypatch.setenv("SCREENSHOT_BACKEND", "x11")
    with pytest.raises(ValueError, match=r"tree .* or screenshot"):
        create_environment("gui")


def test_a_task_that_is_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    (tmp_path / "a.html").write_text("x")
    good = {
        "instruction": "x", "config": [{"type": "open", "parameters": {"url": "a.html"}}],
        "evaluator": {"func": "equal", "result": {"type": "text", "selector": "main"}, "expected": "y"},
    }  # fmt: skip
    file.write_text(json.dumps(good))
    assert len(read_tasks(file)) == 1
    for change, message in (
        ({"evaluator": {}}, "instruction, config and evaluator"),
        ({"evaluator": {"func": "looks_nice"}}, "evaluators are equal"),
        ({"evaluator": {"func": "equal", "result": {"type": "memory"}}}, "a check's result"),
        ({"config": [{"type": "open", "parameters": {"url": "b.html"}}]}, "beside the tasks"),
        ({"config": [{"type": "launch", "parameters": {"url": "a.html"}}]}, "config opens one page"),
    ):
        file.write_text(json.dumps({**good, **change}))
        with pytest.raises(ValueError, match=f"task 1: .*{message}"):
            read_tasks(file)


def test_without_a_browser_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match="apt-get install chromium"):
        check_browser()


@pytest.mark.envs
@needs_browser
class TestGui(EnvironmentContract):
    wrong: Message = calls(("scroll", {"direction": "down"}))

    @pytest.fixture
    async def environment(self) -> AsyncIterator[Environment]:
        made = create_environment("gui")
        yield made
        await made.close()

    @pytest.fixture
    def solve(self) -> Callable[[Task], list[Message]]:
        return solution


@pytest.mark.envs
@needs_browser
async def test_every_task_can_be_solved_and_is_not_yet() -> None:
    async def check(task: Task) -> None:
        async with limit:
            env = Gui()
            await env.reset(task)
            assert not (await env.evaluate()).solved, task.id
            for action in solution(task):
                result = await env.step(action)
            assert result.done, task.id
            assert (await env.evaluate()).solved, f"{task.id}: {env._lines}"
            await env.close()

    limit = asyncio.Semaphore(4)
    await asyncio.gather(*map(check, gui_tasks()))
