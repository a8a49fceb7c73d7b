"""The commands that talk to a running server, against a scripted one."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.commands.chat import Chat
from openclaw_rl.commands.cli import _parser, main
from openclaw_rl.commands.client import ServerClient
from openclaw_rl.commands.forget import summarise
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, scripted_system
from openclaw_rl.types import Weights
from tests.listening import listening


@pytest.fixture
def system(tmp_path: Path) -> Iterator[ServingSystem]:
    system = scripted_system(tmp_path / "home")
    with listening(system) as url:
        (system.config.home / "serve.json").write_text(json.dumps({"url": url, "pid": 1}))
        yield system


def run(system: ServingSystem, *arguments: str) -> int:
    return main([*arguments, "--home", str(system.config.home)])


def chat(system: ServingSystem, *lines: str) -> str:
    out = io.StringIO()
    with ServerClient(system.config) as server:
        Chat(server, out).run(lines)
    return out.getvalue()


def test_a_chat_with_feedback(system: ServingSystem) -> None:
    engine = system.engine
    assert isinstance(engine, ScriptedEngine)
    engine.say("A long answer.")
    engine.say("Short.")
    said = chat(system, "/good", "Hello", "/fix Shorter!", "And now?", "/good", "/what", "/quit", "never")
    assert "there is no reply yet" in said
    assert "A long answer." in said
    assert "it will learn from this" in said
    assert "Short." in said
    assert "unknown: /what" in said
    events = [event for event in system.ledgers.serve.events_after(0, 10) if event.kind == "feedback"]
    assert [(event.data["score"], event.data["text"]) for event in events] == [(-1, "Shorter!"), (1, None)]
    assert len(system.ledgers.serve.list_sessions(10)) == 1


def test_a_chat_says_when_another_version_answers(system: ServingSystem, tmp_path: Path) -> None:
    def lines() -> Iterator[str]:
        yield "Hello"
        asyncio.run(system.engine.load(Weights.in_folder(3, tmp_path)))
        asyncio.run(system.engine.serve_version(3))
        yield "And now?"

    out = io.StringIO()
    with ServerClient(system.config) as server:
        Chat(server, out).run(lines())
    assert "[version 3 answers now, instead of 0]" in out.getvalue()


def test_looking_things_up(system: ServingSystem, capsys: pytest.CaptureFixture[str]) -> None:
    chat(system, "What is a lighthouse?", "/bad")
    assert run(system, "sessions") == 0
    listed = capsys.readouterr().out
    assert "What is a lighthouse?" in listed
    session = system.ledgers.serve.list_sessions(1)[0]["id"]
    assert run(system, "sessions", session) == 0
    turn = capsys.readouterr().out.split()[0]
    assert run(system, "turn", turn) == 0
    shown = capsys.readouterr().out
    assert "user: What is a lighthouse?" in shown
    assert "not learned from" in shown
    assert run(system, "verdict", turn) == 0
    assert "no verdict" in capsys.readouterr().out
    assert run(system, "turn", turn, "--json") == 0
    assert json.loads(capsys.readouterr().out)["id"] == turn
    assert run(system, "turn", "nothing") == 2
    assert "There is no turn 'nothing'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "listed"), [("turn", "sessions"), ("wish", "wishes"), ("user", "users list")]
)
def test_forgetting_what_is_not_there_says_where_to_look(
    system: ServingSystem, capsys: pytest.CaptureFixture[str], what: str, listed: str
) -> None:
    assert run(system, "forget", what, "nothing") == 2
    assert f"'openclaw-rl {listed}' lists what there is" in capsys.readouterr().err


def test_forgetting_says_what_it_did(system: ServingSystem, capsys: pytest.CaptureFixture[str]) -> None:
    chat(system, "What is a lighthouse?")
    session = system.ledgers.serve.list_sessions(1)[0]["id"]
    assert run(system, "forget", "session", session) == 0
    said = capsys.readouterr().out
    assert said.startswith("Erased 1 turn.\n")
    assert "{" not in said


@pytest.mark.parametrize(("back", "serves"), [(0, "the base model"), (3, "version 3")])
def test_forgetting_says_which_versions_are_undone(back: int, serves: str) -> None:
    receipt = {"id": "forget-1", "num_turns": 2, "versions": [4, 5], "back_to": {"everyone": back}}
    assert summarise(receipt).splitlines() == [
        "Erased 2 turns.",
        "Versions 4, 5 had used them and cannot serve any more.",
        f"In everyone, {serves} answers; what is left is being trained again in the background.",
        "Receipt: forget-1; --json prints it.",
    ]


def test_excluding_and_taking_it_back(system: ServingSystem, capsys: pytest.CaptureFixture[str]) -> None:
    chat(system, "What is a lighthouse?")
    session = system.ledgers.serve.list_sessions(1)[0]["id"]
    turn = system.ledgers.serve.turn_summaries(session)[0]["id"]
    for what, name in (("turn", turn), ("session", session)):
        assert run(system, "exclude", what, name) == 0
        assert f"openclaw-rl include {what} {name}" in capsys.readouterr().out
        assert system.dashboard.session(session, None, None, None, False)["turns"][0]["excluded"] is True  # type: ignore[index]
        assert run(system, "include", what, name) == 0
        assert "may be learned from again" in capsys.readouterr().out
        assert system.dashboard.session(session, None, None, None, False)["turns"][0]["excluded"] is False  # type: ignore[index]
    assert run(system, "exclude", "turn", "nothing") == 2
    assert "There is no turn 'nothing'" in capsys.readouterr().err


def test_the_status_fits_one_screen(system: ServingSystem, capsys: pytest.CaptureFixture[str]) -> None:
    chat(system, "Hello")
    assert run(system, "status") == 0
    plain = capsys.readouterr().out
    assert plain.startswith("scripted at http://127.0.0.1")
    assert "the unchanged base model answers" in plain
    assert "Nothing to learn from yet. Talk to it" in plain
    assert "1 reply in 1 conversation; 0 reactions judged" in plain
    assert "samples" not in plain
    assert run(system, "status", "--all") == 0
    shown = capsys.readouterr().out
    assert plain in shown
    assert len(shown.splitlines()) <= 24
    for word in ("traffic", "queues", "seen", "trained", "learning", "swap", "ledger"):
        assert word in shown
    assert run(system, "status", "--json") == 0
    assert json.loads(capsys.readouterr().out)["policy_version"] == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_know_commands_and_flags(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for word in ("serve", "status", "completion", "--watch", "--lora-rank", "--older-than", "personalize"):
        assert word.removeprefix("--") in text
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize(
    ("line", "expected"),
    [("openclaw-rl sta", {"start", "status"}), ("openclaw-rl status --w", {"--watch"}),
     ("openclaw-rl completion z", {"zsh"})],
)  # fmt: skip
def test_bash_completes(line: str, expected: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = line.split(" ")
    main(["completion", "bash"])
    code = capsys.readouterr().out + (
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}\n"
        "$(complete -p openclaw-rl | sed 's/.*-F \\([^ ]*\\).*/\\1/'); echo ${COMPREPLY[@]}"
    )
    done: Any = subprocess.run(["bash"], input=code, text=True, capture_output=True, check=True)
    assert set(done.stdout.split()) == expected


def test_help_is_grouped_and_says_what_there_is() -> None:
    text = _parser().format_help()
    assert all(name in text for name in ("status", "chat", "sessions", "turn", "verdict", "completion"))


def test_a_server_elsewhere_is_named_by_its_address(
    system: ServingSystem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = json.loads((system.config.home / "serve.json").read_text())["url"]
    elsewhere = tmp_path / "elsewhere"
    key = system.keys.add("ada")
    there = ("--home", str(elsewhere), "--url", f"{url}/v1", "--key", key)
    assert main(["status", *there]) == 0
    assert f"at {url}" in capsys.readouterr().out
    assert main(["sessions", *there]) == 0
    assert capsys.readouterr().out == "no conversations yet\n"
    assert main(["status", "--home", str(elsewhere), "--url", url, "--key", "sk-wrong"]) == 2
    assert "key" in capsys.readouterr().err
    assert main(["status", "--home", str(elsewhere), "--url", "ftp://x"]) == 2
    assert "--url is 'ftp://x'" in capsys.readouterr().err
    assert not elsewhere.exists()
