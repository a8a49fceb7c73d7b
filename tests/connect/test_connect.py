"""``openclaw-rl connect``: shown, written with care, written once, taken back."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import threading
import tomllib
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl import connect
from openclaw_rl.commands.connect import server_of
from openclaw_rl.config import load_config
from openclaw_rl.connect import CLIENTS
from openclaw_rl.connect.client import ServerAddress
from openclaw_rl.connect.files import backup_of
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.testing import clean_environment, command, scripted_system
from openclaw_rl.users import Users

from ..listening import listening

SERVER = ServerAddress("http://127.0.0.1:30000", "sk-ocrl-test", "SmolLM2-135M-Instruct", 1024)
FILES = {
    "claude-code": ".claude/settings.json",
    "codex": ".codex/openclaw-rl.config.toml",
    "aider": ".aider.conf.yml",
    "cline": ".cline/data/settings/providers.json",
}
THEIRS = {
    "claude-code": '{\n  "env": {"ANTHROPIC_MODEL": "opus", "A": "b"}, "theme": "dark"\n}',
    "codex": "# mine\n",
    "aider": "dark-mode: true\n",
    "cline": '{"version": 1, "lastUsedProvider": "cline", "modes": {}, "providers": {"openai-compatible": '
    '{"settings": {"provider": "openai-compatible", "model": "m"}, "updatedAt": "2026"}}}',
}


def run(name: str, home: Path, **how: bool) -> str:
    said: list[str] = []
    connect.run(name, SERVER, said.append, home=home, **how)
    return "\n".join(said)


@pytest.mark.parametrize("name", CLIENTS)
def test_the_set_up_is_printed(name: str, tmp_path: Path) -> None:
    said = run(name, tmp_path)
    assert SERVER.key in said
    assert SERVER.model in said or name == "open-webui"
    assert ":30000" in said
    assert not list(tmp_path.iterdir())


def told(name: str, how: dict[str, bool], **facts: bool) -> str:
    said: list[str] = []
    connect.run(name, replace(SERVER, **facts), said.append, **how)
    return "\n".join(said)


@pytest.mark.parametrize("name", CLIENTS)
def test_what_becomes_of_a_client_s_turns_is_said(name: str, tmp_path: Path) -> None:
    """Codex sends ``store: false`` with every request, and which of its two meanings holds is a setting."""
    kept, not_kept = (told(name, {}, keeps_store_false=keeps) for keeps in (True, False))
    assert ("Its turns are kept here and learned from" in kept) == (name == "codex")
    assert ("nothing is kept or learned" in not_kept) == (name == "codex")
    assert "nothing is kept" not in kept.replace("--store-false off-the-record keeps nothing of them", "")
    assert "kept here and learned from" not in not_kept
    private = told(name, {}, off_the_record=True)
    assert "off the record: nothing is kept or learned" in private
    assert "kept here and learned from" not in private


@pytest.mark.parametrize("name", FILES)
def test_what_becomes_of_them_is_said_also_when_it_is_written_and_not_when_it_is_undone(
    name: str, tmp_path: Path
) -> None:
    assert ("store: false" in run(name, tmp_path, write=True)) == (name == "codex")
    assert "store: false" not in run(name, tmp_path, undo=True)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("there", [True, False])
def test_written_once_and_taken_back(name: str, there: bool, tmp_path: Path) -> None:
    path = tmp_path / FILES[name]
    if there:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(THEIRS[name])
        path.chmod(0o640)
    shown = run(name, tmp_path, write=True)
    assert any(line.startswith("+") and SERVER.key in line for line in shown.splitlines())
    written = path.read_text()
    assert SERVER.key in written
    assert stat.S_IMODE(path.stat().st_mode) == (0o640 if there else 0o600)
    assert backup_of(path).exists() == there
    assert "already" in run(name, tmp_path, write=True)
    assert path.read_text() == written
    run(name, tmp_path, undo=True)
    if there:
        assert path.read_text() == THEIRS[name]
    else:
        assert not path.exists()
    assert not backup_of(path).exists()
    assert "nothing of ours" in run(name, tmp_path, undo=True)


@pytest.mark.parametrize("name", FILES)
def test_what_was_changed_since_stays(name: str, tmp_path: Path) -> None:
    path = tmp_path / FILES[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(THEIRS[name])
    run(name, tmp_path, write=True)
    if name in ("claude-code", "cline"):
        tree = json.loads(path.read_text())
        path.write_text(json.dumps({**tree, "new": 1}))
    else:
        added = {"codex": "[new]\na = 1", "aider": "auto-commits: false"}[name]
        path.write_text(f"{path.read_text()}\n{added}\n")
    run(name, tmp_path, undo=True)
    left = path.read_text()
    assert SERVER.key not in left
    assert "new" in left or "auto-commits" in left
    assert backup_of(path).read_text() == THEIRS[name]


def test_claude_code_s_other_settings_stay(tmp_path: Path) -> None:
    path = tmp_path / FILES["claude-code"]
    path.parent.mkdir()
    path.write_text(THEIRS["claude-code"])
    run("claude-code", tmp_path, write=True)
    settings = json.loads(path.read_text())
    assert (settings["theme"], settings["env"]["A"]) == ("dark", "b")
    assert settings["env"]["ANTHROPIC_BASE_URL"] == SERVER.url
    assert settings["env"]["ANTHROPIC_MODEL"] == SERVER.model


def test_codex_s_profile_is_valid_and_its_settings_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / FILES["codex"]
    path.parent.mkdir()
    (path.parent / "config.toml").write_text('model = "gpt-9"\n')
    run("codex", tmp_path, write=True)
    profile = tomllib.loads(path.read_text())
    assert (profile["model"], profile["model_provider"]) == (SERVER.model, "openclaw-rl")
    assert profile["model_providers"]["openclaw-rl"]["base_url"] == SERVER.base_url
    assert (path.parent / "config.toml").read_text() == 'model = "gpt-9"\n'


@pytest.mark.parametrize(("context", "lean"), [(8192, True), (32_768, False)])
def test_agents_with_long_prompts_leave_things_out_where_there_is_no_room(
    context: int, lean: bool, tmp_path: Path
) -> None:
    server = replace(SERVER, context_length=context)
    for name in ("claude-code", "codex"):
        connect.run(name, server, lambda said: None, write=True, home=tmp_path)
    variables = json.loads((tmp_path / FILES["claude-code"]).read_text())["env"]
    profile = tomllib.loads((tmp_path / FILES["codex"]).read_text())
    assert variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == str(context)
    assert profile["model_context_window"] == context
    assert ("CLAUDE_CODE_SIMPLE" in variables, "features" in profile) == (lean, lean)


def test_cline_s_other_providers_stay(tmp_path: Path) -> None:
    path = tmp_path / FILES["cline"]
    path.parent.mkdir(parents=True)
    path.write_text(THEIRS["cline"])
    run("cline", tmp_path, write=True)
    tree = json.loads(path.read_text())
    assert tree["lastUsedProvider"] == "openai-compatible"
    assert tree["providers"]["openai-compatible"]["settings"]["baseUrl"] == SERVER.base_url
    assert tree["providers"]["openai-compatible"]["settings"]["contextWindow"] == SERVER.context_length
    # Cline dates it when it is used, and keeps what else somebody chooses.
    tree["providers"]["openai-compatible"]["updatedAt"] = "2027"
    tree["providers"]["other"] = {"settings": {"provider": "other"}, "updatedAt": "2027"}
    path.write_text(json.dumps(tree))
    assert "already" in run("cline", tmp_path, write=True)
    run("cline", tmp_path, undo=True)
    left, before = json.loads(path.read_text()), json.loads(THEIRS["cline"])
    assert left["lastUsedProvider"] == "cline"
    assert left["providers"]["openai-compatible"] == before["providers"]["openai-compatible"]
    assert "other" in left["providers"]


def test_aider_is_told_the_limits(tmp_path: Path) -> None:
    run("aider", tmp_path, write=True)
    limits = json.loads((tmp_path / ".aider.model.metadata.json").read_text())
    assert limits[f"openai/{SERVER.model}"]["max_input_tokens"] == SERVER.context_length
    run("aider", tmp_path, undo=True)
    assert not list(tmp_path.iterdir())


def test_folders_that_the_client_was_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "c"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "x"))
    run("claude-code", tmp_path, write=True)
    run("codex", tmp_path, write=True)
    assert (tmp_path / "c" / "settings.json").exists()
    assert (tmp_path / "x" / "openclaw-rl.config.toml").exists()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("claude-code", "{ // mine\n}", "plain JSON"),
        ("claude-code", "[1]", "no JSON object"),
        ("claude-code", '{"env": "x"}', "by hand"),
        ("aider", "model: gpt-9\n", "'model' already"),
    ],
)
def test_a_file_that_cannot_be_changed_safely_is_left_alone(
    name: str, text: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / FILES[name]
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    with pytest.raises(ValueError, match=says):
        run(name, tmp_path, write=True)
    assert path.read_text() == text


def test_a_client_without_a_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no settings file"):
        run("open-webui", tmp_path, write=True)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.json"
    real.write_text("{}")
    (tmp_path / ".claude").mkdir()
    (tmp_path / FILES["claude-code"]).symlink_to(real)
    run("claude-code", tmp_path, write=True)
    assert (tmp_path / FILES["claude-code"]).is_symlink()
    assert SERVER.key in real.read_text()


def test_the_command(tmp_path: Path) -> None:
    """Without a running server it says where one would be; the key is the one it will have."""
    environment = {**clean_environment(tmp_path / "home"), "HOME": str(tmp_path), "PORT": "31234"}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command(), "connect", *arguments], env=environment, capture_output=True, text=True, timeout=60
        )

    printed = call("env")
    key = json.loads((tmp_path / "home" / "keys.json").read_text())["default"]
    assert f"export OPENAI_API_KEY={key}" in printed.stdout
    assert "http://127.0.0.1:31234/v1" in printed.stdout
    assert call("claude-code", "--write").returncode == 0
    assert key in (tmp_path / FILES["claude-code"]).read_text()
    assert call("claude-code", "--undo").returncode == 0
    assert not (tmp_path / FILES["claude-code"]).exists()
    assert call("env", "--write").returncode == 2
    assert "keys add ada" in call("env", "--user", "ada").stderr
    assert call("vim").returncode == 2
    assert os.listdir(tmp_path / ".claude") == []


class OtherServersModel(BaseHTTPRequestHandler):
    """A running server that passes requests on: it knows its models' names, and no more."""

    def do_GET(self) -> None:
        known: dict[str, Any] = {
            "/v1/status": {"model": "default", "engine": {"context_length": 0}},
            "/v1/models": {"data": [{"id": "large"}]},
        }
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(known[self.path]).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("arguments", "context"), [((), "32768"), (("--context", "131072"), "131072")])
def test_a_model_that_another_server_holds(arguments: tuple[str, ...], context: str, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), OtherServersModel) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = str(server.server_address[1])
        printed = subprocess.run(
            [command(), "connect", "claude-code", "--port", port, *arguments],
            env=clean_environment(tmp_path), capture_output=True, text=True, timeout=60, check=True,
        ).stdout  # fmt: skip
        server.shutdown()
    assert "ANTHROPIC_MODEL=large" in printed
    assert f"CLAUDE_CODE_MAX_CONTEXT_TOKENS={context}" in printed
    assert "CLAUDE_CODE_SIMPLE" not in printed


def test_the_running_server_s_setting_counts_rather_than_this_command_s(tmp_path: Path) -> None:
    home = tmp_path / "home"
    config = load_config({"home": home}, environment={})
    system = scripted_system(home, store_false="off-the-record")
    assert server_of(config).keeps_store_false, "nobody serves there yet: what the settings say"
    with listening(system) as url:
        (home / "serve.json").write_text(json.dumps({"url": url}))
        assert not server_of(config).keeps_store_false


def test_somebody_off_the_record_is_told_so(tmp_path: Path) -> None:
    config = load_config({"home": tmp_path}, environment={})
    KeyRing.in_home(tmp_path).add("ann")
    Users.in_home(tmp_path).change("ann", off_the_record=True)
    assert server_of(config, "ann").off_the_record
    assert not server_of(config).off_the_record
