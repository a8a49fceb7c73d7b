"""Task folders in the formats of terminal-bench (``task.yaml``, ``run-tests.sh``, ``tests/``) and Harbor
(``instruction.md``, ``environment/``, ``tests/test.sh``).

Dockerfiles are not built: a task has the host's programs and its own files, which the agent finds in
``/work`` (``/app`` is a link to it). Packages that tests import are in ``packages/`` beside the task folders.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openclaw_rl.envs.sandbox import SandboxFile
from openclaw_rl.types import Json, Task

#: Files of a task folder that the agent must not see.
_HIDDEN = ("tests/", "run-tests.sh", "task.yaml", "task.toml", "instruction.md", "solution")
_IMAGE = ("Dockerfile", "docker-compose", ".dockerignore")
_ENVIRONMENT = "environment/"


def read_folder(path: Path) -> list[Task]:
    """The tasks in a folder; if there are none, the ValueError says what a task folder must contain."""
    folders = (
        [path] if _instruction(path) else sorted(p for p in path.iterdir() if p.is_dir() and _instruction(p))
    )
    if not folders:
        raise ValueError(
            f"{path} holds no task: a folder with task.yaml (instruction: …) or instruction.md, and tests"
        )
    return [_read(folder) for folder in folders]


def _read(folder: Path) -> Task:
    every = {str(f.relative_to(folder)): encode_file(f) for f in sorted(folder.rglob("*")) if f.is_file()}
    tests = {
        name: data for name, data in every.items() if name.startswith("tests/") or name == "run-tests.sh"
    }
    if not {"run-tests.sh", "tests/test.sh"} & set(tests):
        raise ValueError(f"{folder} has no tests/test.sh (Harbor) and no run-tests.sh (terminal-bench)")
    data: Json = {
        "instruction": _instruction(folder), "files": _seen(every), "tests": tests,
        "test_script": "run-tests.sh" if "run-tests.sh" in tests else "tests/test.sh",
        "writes_reward": "run-tests.sh" not in tests and "instruction.md" in every,
        "packages": str((folder.parent / "packages").resolve()),
    }  # fmt: skip
    return Task(folder.name, data)


def _seen(every: Mapping[str, Any]) -> Json:
    """Files the agent sees: Harbor's ``environment/``, or everything that is not in ``_HIDDEN``."""
    inside = {
        name.removeprefix(_ENVIRONMENT): data for name, data in every.items() if name.startswith(_ENVIRONMENT)
    }
    seen = inside or {name: data for name, data in every.items() if not name.startswith(_HIDDEN)}
    return {name: data for name, data in seen.items() if not name.startswith(_IMAGE)}


def _instruction(folder: Path) -> str:
    if (folder / "instruction.md").is_file():
        text = (folder / "instruction.md").read_text(encoding="utf-8")
        return re.sub(r"\A\s*<!--.*?-->", "", text, flags=re.DOTALL).strip()  # benchmarks' canary comment
    if (folder / "task.yaml").is_file():
        import yaml  # a dependency of transformers

        found: Any = yaml.safe_load((folder / "task.yaml").read_text(encoding="utf-8"))
        return str(found.get("instruction", "")).strip() if isinstance(found, dict) else ""
    return ""


def encode_file(path: Path) -> str | Json:
    """As plain data: a string for text with the default mode, else bytes and mode."""
    data, mode, script = path.read_bytes(), path.stat().st_mode & 0o777, path.suffix == ".sh"
    mode |= 0o111 if script else 0  # archives may lose the executable bit
    try:
        if mode == (0o755 if script else 0o644):
            return data.decode()
    except UnicodeDecodeError:
        pass
    return {"base64": base64.b64encode(data).decode(), "mode": mode}


def decode_files(files: Mapping[str, Any]) -> dict[str, bytes]:
    return {
        name: data.encode()
        if isinstance(data, str)
        else SandboxFile(base64.b64decode(data["base64"]), data["mode"])
        for name, data in files.items()
    }
