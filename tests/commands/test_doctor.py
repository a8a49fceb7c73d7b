from __future__ import annotations

import http.server
import json
import socket
import threading
from pathlib import Path

import pytest

from openclaw_rl.commands.doctor import (
    Finding,
    _cpu_flags,
    check_disk,
    check_kernels,
    check_key_file,
    check_model,
    check_port,
    check_postgres,
    print_doctor,
    run_doctor,
)
from openclaw_rl.config import load_config
from openclaw_rl.engine import native
from openclaw_rl.models import DEFAULT_MODEL


def test_a_machine_that_runs_the_tests_passes_all_required_checks(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    checks = run_doctor(load_config({"home": tmp_path / "home", "port": port}, {}), tmp_path / "cache")
    assert [check for check in checks if check.required and not check.ok] == []
    assert {"python", "torch", "memory", "model", "port"} <= {check.name for check in checks}
    assert list(tmp_path.iterdir()) == [], "looking must not create anything"


def test_a_broken_probe_is_one_failed_check(tmp_path: Path) -> None:
    config = load_config({"home": tmp_path}, {})
    checks = run_doctor(config.model_copy(update={"serve": config.serve.model_copy(update={"port": 70000})}))
    port = next(check for check in checks if check.name == "port")
    assert not port.ok
    assert "could not check" in port.detail
    assert checks[-1].name == "node"


def test_a_readable_key_file_fails_with_the_command_that_fixes_it(tmp_path: Path) -> None:
    key = tmp_path / "api_key"
    assert check_key_file(key).ok
    key.write_text("secret")
    key.chmod(0o644)
    check = check_key_file(key)
    assert not check.ok
    assert check.fix == f"chmod 600 {key}"
    assert "secret" not in check.detail
    key.chmod(0o600)
    assert check_key_file(key).ok


def test_a_port_held_by_someone_else_fails() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        # Bound, not listening: the connection is refused at once.
        check = check_port("127.0.0.1", port)
        assert not check.ok
        assert "PORT=" in check.fix
    assert check_port("127.0.0.1", port).ok


class _Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"status": "ok"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_port_held_by_our_own_server_is_fine() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _Ready) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        check = check_port("127.0.0.1", server.server_port)
        server.shutdown()
        thread.join()
    assert check.ok
    assert "running" in check.detail


def test_disk_of_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    check = check_disk("disk", tmp_path / "not" / "yet")
    assert "GiB free" in check.detail


def test_a_data_folder_that_is_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "in it"):
        check = check_disk("disk", folder)
        assert not check.ok
        assert "is no folder" in check.detail


def test_a_model_that_is_not_cached_yet_is_no_problem(tmp_path: Path) -> None:
    check = check_model(DEFAULT_MODEL, tmp_path)
    assert check.ok
    assert "first start" in check.detail


def test_cpu_flags_of_x86_and_arm(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 amx_tile\n")
    assert _cpu_flags(cpuinfo) == {"fpu", "avx2", "amx_tile"}
    cpuinfo.write_text("Features\t: fp asimd\n")
    assert _cpu_flags(cpuinfo) == {"fp", "asimd"}
    assert _cpu_flags(tmp_path / "none") == frozenset()


def test_a_database_that_does_not_answer_fails_without_showing_the_password() -> None:
    pytest.importorskip("psycopg")
    check = check_postgres("postgresql+psycopg://someone:hunter2@127.0.0.1:1/none")
    assert not check.ok
    assert "hunter2" not in check.detail + check.fix


def test_exit_code_counts_required_checks_only(capsys: pytest.CaptureFixture[str]) -> None:
    fine = Finding("a", True, "fine")
    note = Finding("b", False, "a pity", "do this", required=False)
    bad = Finding("c", False, "broken", "do that")
    assert print_doctor([fine, note]) == 0
    assert print_doctor([fine, note, bad]) == 1
    out = capsys.readouterr().out
    assert "fix: do that" in out
    assert "FAIL  c  broken" in out


def test_a_missing_compiler_is_a_note_with_its_cost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("OPENCLAW_RL_CACHE", str(tmp_path))
    monkeypatch.setattr(native, "_load_once", native._load_once.__wrapped__)
    check = check_kernels()
    assert not check.ok
    assert not check.required
    assert "apt-get install gcc" in check.fix
