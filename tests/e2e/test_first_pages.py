"""A stranger's path: the commands of the first pages are typed as they stand there, on the real model.

One server for all of them, started by the page's own ``openclaw-rl start``. What needs a network, a package
manager or somebody's files is named in ``NOT_HERE``; every other command of ours on these pages is run, so
that a new one is tried as soon as it is written.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from openclaw_rl.models import default_cache_dir
from openclaw_rl.testing import clean_environment, command
from tests.test_readme import blocks, typed

PAGES = ("docs/index.md", "README.md")
#: How such a command begins, and why it is not run.
NOT_HERE = {
    "openclaw-rl setup": "asks questions; tests/commands/test_setup.py answers them",
    "openclaw-rl import": "needs conversations and adapters of other programs; tests/commands/test_import.py",
    "openclaw-rl serve": "does not return, and names a model to download",
    "openclaw-rl train": "trains for minutes",
}


@dataclass(frozen=True)
class Shell:
    """A shell in which ``openclaw-rl`` is installed and nothing has been set up yet."""

    folder: Path

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        home = self.folder / "home"
        short = {"OPENCLAW_RL_DEFAULT_MAX_TOKENS": "48", "HF_HUB_OFFLINE": "1"}
        mine = {"HOME": str(self.folder), "OPENCLAW_RL_CACHE": str(default_cache_dir())}
        environment = clean_environment(home, {**short, **mine})
        environment["PATH"] = os.pathsep.join([str(Path(command()).parent), environment["PATH"]])
        return subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    def output_of(self, line: str) -> str:
        done = self.run(line)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout


def ours() -> list[str]:
    """Commands of ours in the order of the pages, each once, without those that cannot be run here."""
    lines = [line.partition(" #")[0].strip() for page in PAGES for line in typed(page)]
    mine = [line for line in lines if re.search(r"^openclaw-rl |\| openclaw-rl ", line)]
    return [line for line in dict.fromkeys(mine) if not line.startswith(tuple(NOT_HERE))]


def test_every_exception_is_still_needed() -> None:
    lines = [line for page in PAGES for line in typed(page)]
    assert [begin for begin in NOT_HERE if not any(line.startswith(begin) for line in lines)] == []


@pytest.mark.slow
@pytest.mark.usefixtures("model_path")
def test_the_commands_of_the_first_pages_work(tmp_path: Path) -> None:
    shell, lines = Shell(tmp_path), ours()
    lines.remove("openclaw-rl start")
    lines.remove("openclaw-rl stop")
    printed = shell.output_of("openclaw-rl start")
    try:
        outputs = {line: shell.output_of(line) for line in lines}
        assert '"role":"assistant"' in shell.output_of(command_to_try(printed)).replace(" ", "")
        assert shell.output_of(program(printed)).strip()
    finally:
        stopped = shell.run("openclaw-rl stop")
    assert stopped.stdout == "stopped\n", stopped.stderr
    assert "Traceback" not in (tmp_path / "home" / "serve.log").read_text()
    assert "everything needed is here" in shell.output_of("openclaw-rl doctor")
    assert re.search(r" at http://\S+; .* answers\.$", outputs["openclaw-rl status"], re.M)
    [chat] = [line for line in lines if line.startswith("echo ")]
    assert outputs[chat].strip()
    with tarfile.open(tmp_path / "claw.tar.gz") as backup:
        assert any(name.endswith("keys.json") for name in backup.getnames())
    [connect] = [line for line in lines if line.startswith("openclaw-rl connect ")]
    assert url_and_key(printed)[0] in (tmp_path / ".openclaw" / "openclaw.json").read_text(), outputs[connect]


def url_and_key(printed: str) -> tuple[str, str]:
    """As the start prints them for a person."""
    [url], [key] = re.findall(r"^ +API +(\S+)$", printed, re.M), re.findall(r"^ +key +(\S+)$", printed, re.M)
    return url, key


def command_to_try(printed: str) -> str:
    [line] = re.findall(r"^  (curl (?:.*\\\n)?.*)$", printed, re.M)
    return str(line)


def program(printed: str) -> str:
    """The README's program, in which a person puts the key and this port."""
    [text], (url, key) = blocks("README.md", "python"), url_and_key(printed)
    text = text.replace("http://127.0.0.1:30000/v1", url).replace("sk-ocrl-…", key)
    return shlex.join([sys.executable, "-c", text])
