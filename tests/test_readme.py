"""Commands on the first pages exist and work, links lead somewhere, and the code map is complete."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import runpy
import shlex
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvicorn

from openclaw_rl.commands.cli import _parser
from openclaw_rl.commands.flags import parse
from openclaw_rl.config import fields
from openclaw_rl.testing import scripted_system, wait_until

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/index.md",
    "docs/team.md",
    "docs/faq.md",
    "docs/how-fast.md",
    "docs/extend.md",
)
PACKAGE = ROOT / "openclaw_rl"
COMMANDS = re.compile(r"`(openclaw-rl [^`]+)`")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)


def typed(page: str) -> list[str]:
    """Lines of shell, and commands within the text."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    return [*lines, *COMMANDS.findall((ROOT / page).read_text())]


@pytest.mark.parametrize("page", PAGES)
def test_commands_can_be_typed(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for line in typed(page):
        for command in line.partition("#")[0].split("&&"):
            words = shlex.split(command)
            if words[:1] == ["make"]:
                assert {word for word in words[1:] if "=" not in word} <= targets, line
            if words[:1] == ["openclaw-rl"] and not _is_abridged(words):
                parse(_parser(), words[1:])


def _is_abridged(words: list[str]) -> bool:
    """``openclaw-rl start | stop``, and commands that are named without their arguments."""
    return "|" in words or words[1:] in (["connect"], ["data"], ["users"])


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / page).read_text()):
        if not target.startswith("http"):
            assert (folder / target).exists(), f"{page}: {target}"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_the_readme_s_clone_is_ready_for_its_other_commands(tmp_path: Path) -> None:
    clone, *others = [line.partition(" #")[0].strip() for line in blocks("README.md", "sh")[0].splitlines()]
    typed = clone.replace("REPOSITORY", shlex.quote(str(ROOT)))
    assert typed != clone
    for line in others:
        assert line.startswith("make ")
        typed += f" && {line.replace('make', 'make --dry-run')}"
    done = subprocess.run(["bash", "-c", typed], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "openclaw-rl serve" in done.stdout


def test_the_code_map_names_every_folder() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = text.partition("| path in")[2].partition("\n\n")[0].splitlines()[2:]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert not [name for name in named if not (PACKAGE / name).exists()]
    assert {f"{path.parent.name}/" for path in PACKAGE.glob("*/*.*")} - {"__pycache__/"} <= named


def page_and_site(name: str) -> tuple[str, str]:
    """A page as it is written, and as ``make docs`` shows it."""
    text = (ROOT / "docs" / name).read_text()
    page = SimpleNamespace(file=SimpleNamespace(src_path=name))
    return text, runpy.run_path(str(ROOT / "scripts" / "docs_hooks.py"))["on_page_markdown"](text, page)


def test_the_page_about_settings_is_made_from_them() -> None:
    """No file repeats them: see ``scripts/docs_hooks.py``."""
    text, made = page_and_site("settings.md")
    for _, name, _ in fields():
        assert f"| `{name}` |" in made
        assert f"`{name}`" not in text
    assert "## `[learn.hybrid]`" in made
    assert "| `teacher_k` | `2` |" in made
    for table, setting in (("engine.local", "kernel"), ("engine.vllm", "url"), ("train.local", "train_base")):
        _, _, rest = made.partition(f"## `[{table}]`")
        assert f"| `{setting}` |" in rest.partition("## ")[0]


def test_the_page_about_the_api_is_made_from_the_routes(tmp_path: Path) -> None:
    text, made = page_and_site("api.md")
    routes = scripted_system(tmp_path / "home").app().openapi()["paths"]
    for path, methods in routes.items():
        for method, operation in methods.items():
            [row] = re.findall(rf"^\| `{method.upper()} {re.escape(path)}[?`].*", made, re.M)
            assert operation.get("description"), f"{method} {path} needs a docstring"
            assert not row.endswith("|  |"), row
    assert "| `POST /v1/feedback` `{id, rating?, score?, text?}` |" in made
    assert "GET /v1/turns/{turn_id}" not in text


def test_the_readme_s_program_runs(tmp_path: Path) -> None:
    system = scripted_system(tmp_path / "home")
    server = uvicorn.Server(
        uvicorn.Config(system.app(), host="127.0.0.1", port=0, log_level="error", ws="none")
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        wait_until(lambda: server.started, "the scripted server listens")
        port = server.servers[0].sockets[0].getsockname()[1]
        [program] = blocks("README.md", "python")
        program = program.replace("127.0.0.1:30000", f"127.0.0.1:{port}")
        program = program.replace("sk-ocrl-…", str(system.keys.key_of("default")))
        shown, names = io.StringIO(), {}
        with contextlib.redirect_stdout(shown):
            exec(program, names)
        names["stream"].response.close()
        names["client"].close()
        assert shown.getvalue() == "Hello!"
    finally:
        server.should_exit = True
        thread.join(30)
