"""A default is written once: where a setting has one, nothing else repeats it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import openclaw_rl
from openclaw_rl.config import fields

PACKAGE = Path(openclaw_rl.__file__).parent
#: Where defaults are written.
SOURCES = {"config.py", "settings.py"}
#: The same name for something else.
OTHERS = {
    "Batch.loss": "what a batch is learned with; the setting is somebody's own function",
    "Needs.loss": "what an algorithm asks for; the setting is somebody's own function",
    "Needs.batch_size": "what an algorithm asks for where the setting says 0",
    "JudgeParts.model": "none, where nothing has to be loaded",
    "RemoteEngine.__init__.timeout_s": "of the private socket, not of a server elsewhere",
    "wait_until.timeout_s": "of a test",
    "until.timeout_s": "of a test",
    "ServerProcess.start.timeout_s": "of a test",
    "tiny_model.seed": "of a test's network",
    "Comparison.seed": "of answers that are shown side by side",
    "items.seed": "which tasks of an evaluation are drawn",
    "requests.seed": "which requests of an evaluation are drawn",
}


def defaults(tree: ast.AST, path: str = "") -> Iterator[tuple[str, ast.expr, bool]]:
    """(qualified name, default, whether it is a field of a class) of fields and parameters."""
    for node in ast.iter_child_nodes(tree):
        inner = f"{path}{node.name}." if hasattr(node, "name") else path
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and line.value is not None:
                    yield f"{inner}{ast.unparse(line.target)}", line.value, True
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            plain = [*arguments.posonlyargs, *arguments.args][-len(arguments.defaults) or None :]
            named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            for argument, value in [*zip(plain, arguments.defaults, strict=False), *named]:
                if value is not None:
                    yield f"{inner}{argument.arg}", value, False
        yield from defaults(node, inner)


def repeats(root: Path, settings: dict[str, Any]) -> list[str]:
    found = []
    for path in sorted(root.rglob("*.py")):
        if path.parent == root and path.name in SOURCES:
            continue
        for name, value, is_field in defaults(ast.parse(path.read_text())):
            if name in OTHERS or (given := _literal(value)) is None:
                continue
            last = name.rpartition(".")[2]
            for setting, default in settings.items():
                same = last == setting and (is_field or given == default)
                if same or (_is_part(last, setting) and given == default):
                    found.append(f"{path.relative_to(root)}: {name} = {given!r} repeats {setting}")
    return found


def _literal(value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError:
        return None


def _is_part(name: str, setting: str) -> bool:
    """``max_age_s`` of ``batch_max_age_s``."""
    return setting.endswith(f"_{name}") or name.endswith(f"_{setting}")


def test_no_default_repeats_a_settings() -> None:
    assert repeats(PACKAGE, {name: setting.default for _, name, setting in fields()}) == []


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("@dataclass\nclass A:\n    teacher_k: int = 0", True),
        ("@dataclass\nclass A:\n    teacher_k: int", False),
        ("@dataclass\nclass A:\n    max_age_s: float = 600.0", True),
        ("@dataclass\nclass A:\n    max_age_s: float = 5.0", False),
        ("def f(port: int = 30000): ...", True),
        ("def f(a, *, port: int = 30000): ...", True),
        ("def f(port: int = 1): ...", False),
        ("class A:\n    async def f(self, port=30000): ...", True),
        ("class A:\n    port: int | None = None", False),
    ],
)
def test_the_check_itself_catches(tmp_path: Path, text: str, caught: bool) -> None:
    (tmp_path / "a.py").write_text(text)
    assert bool(repeats(tmp_path, {"teacher_k": 2, "batch_max_age_s": 600.0, "port": 30000})) == caught
