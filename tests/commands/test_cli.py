from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from openclaw_rl.commands.cli import main
from openclaw_rl.testing import clean_environment, command


def run(home: Path, *arguments: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [command(), *arguments],
        env=clean_environment(home, env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_help_lists_the_commands(tmp_path: Path) -> None:
    result = run(tmp_path, "--help")
    assert result.returncode == 0
    for name in ("serve", "status", "doctor", "keys", "data"):
        assert name in result.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["--version"]], ids=" ".join)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = f"import sys; from openclaw_rl.commands.cli import main\ntry: main({arguments})\n"
    code += "except SystemExit: pass\n"
    code += "print(sorted({'torch', 'transformers', 'fastapi', 'sqlalchemy', 'numpy'} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert loaded.stdout.splitlines()[-1] == "[]"


def test_every_setting_is_a_flag_of_serve(capsys: pytest.CaptureFixture[str]) -> None:
    from openclaw_rl.config import fields

    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert [name for _, name, _ in fields() if f"--{name.replace('_', '-')}" not in shown] == []


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    from openclaw_rl import __version__

    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.strip() == __version__


def test_keys_are_listed_added_and_removed(tmp_path: Path) -> None:
    added = run(tmp_path, "keys", "add", "ada")
    key = added.stdout.strip()
    assert key.startswith("sk-ocrl-")
    listed = dict(line.split("\t") for line in run(tmp_path, "keys", "list").stdout.splitlines())
    assert set(listed) == {"ada", "default"}
    assert listed["ada"] == key
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600
    again = run(tmp_path, "keys", "add", "ada")
    assert (again.returncode, again.stdout) == (2, "")
    assert "has a key already" in again.stderr
    assert run(tmp_path, "keys", "remove", "ada").returncode == 0
    assert "ada" not in run(tmp_path, "keys", "list").stdout
    assert run(tmp_path, "keys", "remove", "ada").returncode == 2
    assert "needs a user name" in run(tmp_path, "keys", "add").stderr


def test_keys_that_hosts_share_are_those_in_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shared := tmp_path / "shared").mkdir()
    monkeypatch.setenv("OPENCLAW_RL_PEOPLE_FOLDER", str(shared))
    assert main(["keys", "add", "ada", "--home", str(tmp_path / "home")]) == 0
    key = capsys.readouterr().out.strip()
    assert json.loads((shared / "keys.json").read_text())["ada"] == key
    assert main(["keys", "list", "--home", str(tmp_path / "home")]) == 0
    assert f"ada\t{key}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("status",), "no server is running"),
        (("status", "--config", "/nowhere.toml"), "no config file /nowhere.toml"),
        (("serve", "--port", "70000"), "setting serve.port"),
        (("serve", "--log-level", "loud"), "log_level"),
        (("data", "import", "/nowhere.jsonl"), "/nowhere.jsonl"),
        (("data", "export", "--ledger-url", "mysql://x/y"), "unknown ledger 'mysql'"),
    ],
)
def test_a_user_s_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run(tmp_path, *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.startswith("openclaw-rl: ")
    assert len(result.stderr.splitlines()) == 1, "no traceback"


def test_a_server_that_died_is_said_not_to_answer(tmp_path: Path) -> None:
    (tmp_path / "serve.json").write_text('{"url": "http://127.0.0.1:9", "pid": 1}')
    result = run(tmp_path, "status")
    assert result.returncode == 2
    assert "http://127.0.0.1:9 does not answer" in result.stderr


def test_doctor_reports_and_says_how_it_went(tmp_path: Path) -> None:
    result = run(tmp_path, "doctor", PORT="0")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "python" in result.stdout


def test_an_empty_ledger_is_sound_and_exports_nothing(tmp_path: Path) -> None:
    check = run(tmp_path, "data", "check")
    assert (check.returncode, check.stdout.strip()) == (0, "the ledger is sound")
    export = run(tmp_path, "data", "export")
    assert (export.returncode, export.stdout) == (0, "")
    assert "0 sessions exported" in export.stderr


def test_an_import_stops_at_the_line_that_is_wrong(tmp_path: Path) -> None:
    result = run(tmp_path, "data", "import", stdin="\n" + json.dumps({"turns": [{}]}) + "\n")
    assert result.returncode == 2
    assert "line 2" in result.stderr
