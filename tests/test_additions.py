"""What CONTRIBUTING.md promises about additions: how few files each takes, done for real on a copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import openclaw_rl
from openclaw_rl.capture.database import sqlite_url
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.testing.contracts.ledger import turn

PACKAGE = Path(openclaw_rl.__file__).parent


class Copy:
    """The package in a folder of its own, and what was changed in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.touched = folder, set[str]()
        skip = shutil.ignore_patterns("__pycache__", "csrc", "web", "*.so")
        shutil.copytree(PACKAGE, folder / "openclaw_rl", ignore=skip)

    def write(self, name: str, text: str) -> None:
        self.touched.add(name)
        (self.folder / "openclaw_rl" / name).write_text(text)

    def insert(self, name: str, after: str, text: str) -> None:
        before = (self.folder / "openclaw_rl" / name).read_text()
        assert before.count(after) == 1, f"{name} has {before.count(after)} times {after!r}"
        self.write(name, before.replace(after, after + text))

    def run(self, code: str, *arguments: str, **environment: str) -> str:
        """In a process that knows only the copy."""
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.folder), **environment}
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=env, cwd=self.folder, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


PARSE = """
import sys
import openclaw_rl
assert openclaw_rl.__file__.startswith(sys.path[1] or "/"), openclaw_rl.__file__
from openclaw_rl.commands.cli import _parser
from openclaw_rl.commands.flags import read_config
config = read_config(_parser().parse_args(sys.argv[1:]))
"""

ALGORITHM = '''
"""Only complaints count."""

from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.algo.base import VerdictOptions, verdict_example
from openclaw_rl.types import Batch, Example, Json, Lesson, Needs, Scorer


@dataclass(frozen=True)
class Complaints:
    push: float = 0.5
    needs = Needs()

    async def examples(self, lesson: Lesson, scorer: Scorer) -> list[Example]:
        return [verdict_example(lesson, VerdictOptions(), -self.push)] if lesson.verdict.score < 0 else []

    def batch(self, examples: Sequence[Example], state: Json) -> Batch:
        return Batch(examples)
'''


def test_an_algorithm_with_an_option_is_two_files(copy: Copy) -> None:
    copy.write("algo/complaints.py", ALGORITHM)
    name = "algo/__init__.py"
    copy.insert(name, "import Binary\n", "from openclaw_rl.algo.complaints import Complaints\n")
    copy.insert(name, '    "binary": Binary,\n', '    "complaints": Complaints,\n')
    assert len(copy.touched) <= 2
    code = PARSE + "from openclaw_rl.algo import create_algorithm; print(create_algorithm(config.learn))"
    home = ["--home", str(copy.folder / "home")]
    assert copy.run(code, "serve", *home, "--algo", "complaints") == "Complaints(push=0.5)\n"
    flags = ["--algo", "complaints", "--algo-options", "push=0.9"]
    assert copy.run(code, "serve", *home, *flags) == "Complaints(push=0.9)\n"
    variables = {"OPENCLAW_RL_ALGO": "complaints", "OPENCLAW_RL_ALGO_OPTIONS": "push=0.8"}
    assert copy.run(code, "serve", *home, **variables) == "Complaints(push=0.8)\n"
    (copy.folder / "home").mkdir()
    toml = '[learn]\nalgo = "complaints"\n[learn.complaints]\npush = 0.7\n'
    (copy.folder / "home" / "config.toml").write_text(toml)
    assert copy.run(code, "serve", *home) == "Complaints(push=0.7)\n"


ENGINE = '''
"""Somebody else's server."""

from dataclasses import dataclass

from openclaw_rl.engine.absent import AbsentEngine
from openclaw_rl.settings import EngineConfig


@dataclass(frozen=True)
class FarOptions(EngineConfig):
    url: str = "http://127.0.0.1:8000"
    """Where it listens."""


class FarEngine(AbsentEngine):
    def __init__(self, model, options) -> None:
        self.options = options
'''


def test_an_engine_is_two_files(copy: Copy) -> None:
    copy.write("engine/far.py", ENGINE)
    name = "engine/__init__.py"
    before = '    "vllm": _Maker("vllm", "VllmEngine", "VllmOptions"),\n'
    copy.insert(name, before, '    "far": _Maker("far", "FarEngine", "FarOptions"),\n')
    assert len(copy.touched) <= 2
    code = PARSE + (
        "from pathlib import Path\n"
        "from openclaw_rl.engine import EngineParts, create_engine\n"
        "options = create_engine(EngineParts(Path(), config.engine)).options\n"
        "print(options.engine, options.url, options.max_running)"
    )
    home = ["--home", str(copy.folder / "home")]
    flags = ["--engine", "far", "--engine-options", "url=http://gpu", "--max-running", "3"]
    assert copy.run(code, "serve", *home, *flags) == "far http://gpu 3\n"


def test_a_setting_is_one_file(copy: Copy) -> None:
    text = '    greeting: str = "Hello"\n    """What is said at the start."""\n'
    copy.insert("config.py", '    """Require an API key."""\n', text)
    assert len(copy.touched) <= 1
    code = "import sys\nfrom openclaw_rl.commands.cli import main\nsys.exit(main(sys.argv[1:]))"
    shown = copy.run(code, "serve", "--help", COLUMNS="200")
    assert "--greeting" in shown
    assert "What is said at the start. [Hello]" in shown
    code = PARSE + "print(config.serve.greeting)"
    home = ["--home", str(copy.folder / "home")]
    assert copy.run(code, "serve", *home, "--greeting", "Hi") == "Hi\n"
    assert copy.run(code, "serve", *home, OPENCLAW_RL_GREETING="Hey") == "Hey\n"
    # The page about all settings takes it from there.
    scripts = copy.folder / "scripts"
    scripts.mkdir()
    shutil.copy(PACKAGE.parent / "scripts" / "settings-reference", scripts / "reference.py")
    printed = copy.run("from scripts.reference import reference; print(reference())")
    assert "| `greeting` | `Hello` | What is said at the start. |" in printed


COLUMN = """
import sys
from dataclasses import replace
from openclaw_rl.capture.serve_ledger import ServeLedger
ledger = ServeLedger(sys.argv[1])
old = ledger.load_turn("t1")
ledger.append([replace(old, id="t2", mood="glad", keys={})])
print(old.mood, ledger.load_turn("t2").mood, ledger.turn_summary("t2")["mood"])
"""


def test_a_column_of_the_ledger_is_two_files(copy: Copy) -> None:
    url = sqlite_url(copy.folder / "old.db")
    ledger = ServeLedger(url)
    ledger.append([turn(1)])
    ledger.close()
    field = '    mood: str = "calm"\n    """How the reader sounded."""\n'
    copy.insert(
        "types/capture.py", '    """The policy that answered, and that learns from this turn."""\n', field
    )
    migrations = sorted((PACKAGE / "capture" / "migrations" / "serve").glob("*.sql"))
    number = int(migrations[-1].name[:4]) + 1
    sql = "ALTER TABLE turns ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm';\n"
    copy.write(f"capture/migrations/serve/{number:04}_mood.sql", sql)
    assert len(copy.touched) <= 2
    assert copy.run(COLUMN, url) == "calm glad glad\n"
