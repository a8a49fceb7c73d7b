"""``openclaw-rl connect openclaw``: other settings stay, our plugin comes and goes with the entry."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl import connect
from openclaw_rl.connect.client import ServerAddress
from openclaw_rl.connect.files import backup_of

SERVER = ServerAddress("http://127.0.0.1:30000", "sk-ocrl-test", "SmolLM2-135M-Instruct", 1024)
NAME = "openclaw-rl/SmolLM2-135M-Instruct"
THEIRS: dict[str, Any] = {
    "agents": {
        "defaults": {
            "model": {"primary": "acme/large", "fallbacks": ["acme/small"]},
            "models": {"acme/large": {}},
        }
    },
    "models": {"providers": {"acme": {"baseUrl": "https://acme.example/v1", "models": []}}},
    "plugins": {"allow": ["telegram"], "load": {"paths": ["/their/plugin"]}, "entries": {"telegram": {}}},
    "tools": {"allow": ["read"]},
    "channels": {"telegram": {"enabled": True}},
}


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENCLAW_STATE_DIR", raising=False)
    monkeypatch.delenv("OPENCLAW_CONFIG_PATH", raising=False)


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / ".openclaw" / "openclaw.json"
    path.parent.mkdir()
    path.write_text(json.dumps(THEIRS))
    return path


def run(home: Path, server: ServerAddress = SERVER, **how: bool) -> str:
    said: list[str] = []
    connect.run("openclaw", server, said.append, home=home, **how)
    return "\n".join(said)


def test_what_the_user_has_stays(settings: Path, tmp_path: Path) -> None:
    shown = run(tmp_path, write=True)
    assert '+    "primary": "openclaw-rl' in shown.replace("      ", "  ")
    tree = json.loads(settings.read_text())
    assert tree["channels"] == THEIRS["channels"]
    assert tree["tools"]["allow"] == ["read"]
    assert tree["agents"]["defaults"]["model"] == {"primary": NAME, "fallbacks": ["acme/small"]}
    assert tree["agents"]["defaults"]["models"] == {"acme/large": {}, NAME: {}}
    assert tree["plugins"]["allow"] == ["telegram", "openclaw-rl"]
    assert set(tree["models"]["providers"]) == {"acme", "openclaw-rl"}
    provider = tree["models"]["providers"]["openclaw-rl"]
    assert (provider["baseUrl"], provider["apiKey"]) == ("http://127.0.0.1:30000/v1", "sk-ocrl-test")
    assert provider["models"][0]["contextWindow"] == 8192
    ours, theirs = tree["plugins"]["load"]["paths"][1], tree["plugins"]["load"]["paths"][0]
    assert theirs == "/their/plugin"
    assert json.loads((Path(ours) / "openclaw.plugin.json").read_text())["id"] == "openclaw-rl"
    assert (Path(ours) / "index.js").exists()


def test_a_list_of_the_allowed_is_never_begun(tmp_path: Path) -> None:
    """It would shut out every other plugin and model."""
    run(tmp_path, write=True)
    tree = json.loads((tmp_path / ".openclaw" / "openclaw.json").read_text())
    assert "allow" not in tree["plugins"]
    assert "models" not in tree["agents"]["defaults"]


def test_twice_is_once_and_undo_is_exact(settings: Path, tmp_path: Path) -> None:
    before = settings.read_text()
    run(tmp_path, write=True)
    written = settings.read_text()
    again = run(tmp_path, write=True)
    assert "already" in again
    assert settings.read_text() == written
    run(tmp_path, undo=True)
    assert settings.read_text() == before
    assert [path.name for path in settings.parent.iterdir()] == ["openclaw.json"]
    assert "nothing of ours" in run(tmp_path, undo=True)


def test_nothing_is_left_where_nothing_was(tmp_path: Path) -> None:
    run(tmp_path, write=True)
    run(tmp_path, undo=True)
    assert list((tmp_path / ".openclaw").iterdir()) == []


def test_undo_after_the_user_and_openclaw_went_on(settings: Path, tmp_path: Path) -> None:
    """OpenClaw rewrites its file, and the server may have another key by now."""
    run(tmp_path, write=True)
    tree = json.loads(settings.read_text())
    tree["models"]["providers"]["openclaw-rl"]["headers"] = {}
    tree["meta"] = {"lastTouchedVersion": "2026.9.6"}
    tree["plugins"]["allow"].append("discord")
    settings.write_text(json.dumps(tree))
    run(tmp_path, replace(SERVER, key="sk-ocrl-new", model="another"), undo=True)
    left = json.loads(settings.read_text())
    assert left["meta"] == tree["meta"]
    assert left["plugins"]["allow"] == ["telegram", "discord"]
    assert left["plugins"]["entries"] == {"telegram": {}}
    assert left["agents"]["defaults"]["model"] == THEIRS["agents"]["defaults"]["model"]
    assert left["models"] == THEIRS["models"]
    assert json.loads(backup_of(settings).read_text()) == THEIRS


def test_a_new_key_and_a_new_plugin_replace_the_old_ones(settings: Path, tmp_path: Path) -> None:
    """What the user set for the plugin stays until the plugin goes."""
    before = settings.read_text()
    run(tmp_path, write=True)
    tree = json.loads(settings.read_text())
    tree["plugins"]["entries"]["openclaw-rl"]["config"] = {"systemPrompt": "Be kind."}
    settings.write_text(json.dumps(tree))
    plugin = settings.parent / "openclaw-rl-plugin"
    (plugin / "index.js").write_text("// an older one\n")
    run(tmp_path, replace(SERVER, key="sk-ocrl-new"), write=True)
    assert "sk-ocrl-new" in settings.read_text()
    assert "older" not in (plugin / "index.js").read_text()
    assert sorted(path.name for path in plugin.iterdir()) == [
        "index.js", "messages.js", "notices.js", "openclaw.plugin.json", "package.json", "reactions.js",
        "turns.js",
    ]  # fmt: skip
    assert backup_of(settings).read_text() == before
    entry = {
        "enabled": True,
        "hooks": {"allowConversationAccess": True},
        "config": {"systemPrompt": "Be kind."},
    }
    assert json.loads(settings.read_text())["plugins"]["entries"]["openclaw-rl"] == entry
    run(tmp_path, undo=True)
    assert json.loads(settings.read_text()) == THEIRS


def test_only_a_small_context_needs_a_lean_prompt(tmp_path: Path) -> None:
    run(tmp_path, replace(SERVER, context_length=131_072), write=True)
    tree = json.loads((tmp_path / ".openclaw" / "openclaw.json").read_text())
    assert "tools" not in tree
    assert set(tree["agents"]["defaults"]) == {"model"}


def test_comments_are_not_lost(settings: Path, tmp_path: Path) -> None:
    text = "{\n  // why: the family chat\n  channels: {},\n}\n"
    settings.write_text(text)
    with pytest.raises(ValueError, match=r"not plain JSON.*by hand"):
        run(tmp_path, write=True)
    assert settings.read_text() == text
    assert list(settings.parent.iterdir()) == [settings]
    assert json.loads(run(tmp_path).partition("\n\n")[2].rpartition("\n\n")[0])["models"]["providers"]


def test_openclaw_s_own_variables_say_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("OPENCLAW_CONFIG_PATH", str(tmp_path / "mine.json"))
    run(tmp_path / "home", write=True)
    assert (tmp_path / "mine.json").exists()
    assert (tmp_path / "state" / "openclaw-rl-plugin" / "index.js").exists()


@pytest.mark.node
def test_the_plugin(require: Callable[[str, str], Path]) -> None:
    tests = Path(__file__).parent / "openclaw_plugin.test.mjs"
    done = subprocess.run(
        [require("node", "nodejs"), "--test", tests], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
