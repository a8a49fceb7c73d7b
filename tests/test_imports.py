"""Data flows one way: stages know the root modules, never each other; light parts stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import openclaw_rl

PACKAGE = Path(openclaw_rl.__file__).parent
STAGES = {"serve", "render", "engine", "capture", "judge", "algo", "train", "envs", "sinks"}
#: The only modules that may know the stages: those that wire, for use, for checks, tests and measuring.
WIRING = {"loop", "capabilities", "processes", "commands", "testing", "evals"}


def imported(path: Path, module: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Every import of this package in a file as (line, dotted name), relative ones resolved."""
    package = module if path.name == "__init__.py" else module[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            start = ".".join(part for part in (base, node.module) if part)
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)


def violations(root: Path) -> list[str]:
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        module = ("openclaw_rl", *(parts[:-1] if parts[-1] == "__init__" else parts))
        owner = parts[0] if len(parts) > 1 else None
        if parts[0] in WIRING:
            continue
        for line, name in imported(path, module):
            words = name.split(".")
            if words[0] != "openclaw_rl" or len(words) < 2:
                continue
            stage = words[1]
            if (stage in STAGES and stage != owner) or (owner in STAGES and stage in WIRING):
                found.append(f"{'/'.join(parts)}.py:{line} imports {name}")
    return found


def test_no_stage_imports_another() -> None:
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "text", "caught"),
    [
        ("serve/a.py", "from openclaw_rl.capture import serve_ledger", True),
        ("serve/a.py", "import openclaw_rl.engine.local", True),
        ("serve/a.py", "from openclaw_rl import engine", True),
        ("serve/a.py", "from ..engine import local", True),
        ("serve/a.py", "from .. import engine", True),
        ("serve/a.py", "def f():\n    from openclaw_rl.render import base", True),
        ("serve/a.py", "from openclaw_rl import loop", True),
        ("models.py", "from openclaw_rl.capture import serve_ledger", True),
        ("serve/__init__.py", "from .chat import x", False),
        ("serve/a.py", "from openclaw_rl.types import Engine\nfrom openclaw_rl.serve import sse", False),
        ("serve/a.py", "from openclaw_rl.processes import parts", True),
        ("loop.py", "from openclaw_rl.engine import local", False),
        ("processes/a.py", "from openclaw_rl.engine import local", False),
    ],
)
def test_the_check_itself_catches(tmp_path: Path, file: str, text: str, caught: bool) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert bool(violations(tmp_path)) == caught


@pytest.mark.parametrize(
    ("module", "blocked"),
    [
        ("openclaw_rl.types", ("pydantic", "fastapi", "sqlalchemy", "torch", "numpy", "transformers")),
        ("openclaw_rl.errors", ("pydantic", "fastapi", "sqlalchemy", "torch", "numpy", "transformers")),
        ("openclaw_rl.config", ("fastapi", "sqlalchemy", "torch", "numpy", "transformers")),
        ("openclaw_rl.testing", ("pydantic", "fastapi", "sqlalchemy", "torch", "numpy", "transformers")),
        ("openclaw_rl.engine.local", ("pydantic", "fastapi", "sqlalchemy")),
        ("openclaw_rl.train", ("pydantic", "fastapi", "sqlalchemy", "torch", "numpy")),
        ("openclaw_rl.algo", ("fastapi", "sqlalchemy", "torch")),
        ("openclaw_rl.serve.app", ("sqlalchemy", "torch", "transformers")),
        ("openclaw_rl.loop", ("torch",)),
        ("openclaw_rl.capture.serve_ledger", ("fastapi", "torch", "transformers")),
        ("openclaw_rl.capture.stored", ("pydantic", "fastapi", "openclaw_rl.serve")),
    ],
)
def test_what_a_module_must_do_without(module: str, blocked: tuple[str, ...]) -> None:
    top = module.split(".")[1]
    if not (PACKAGE / top).exists() and not (PACKAGE / f"{top}.py").exists():
        assert top in ("train", "algo"), f"{top} vanished"
        return
    block = "; ".join(f"sys.modules[{name!r}] = None" for name in blocked)
    code = f"import sys; {block}; import {module}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
