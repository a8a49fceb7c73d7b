"""A mistake is one line that says what was probably meant, before anything is loaded or made."""

from __future__ import annotations

import json
import os
import subprocess
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from openclaw_rl.commands.cli import main
from openclaw_rl.commands.connect import _served
from openclaw_rl.config import load_config
from openclaw_rl.models import pick_device
from openclaw_rl.testing import clean_environment, command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serve", "--algo", "hintd"), "did you mean 'hinted'?"),
        (("serve", "--engine", "locl"), "did you mean 'local'?"),
        (("serve", "--trainer", "locl"), "did you mean 'local'?"),
        (("serve", "--judge", "lable"), "did you mean 'label'?"),
        (("serve", "--sinks", "jsonl,promtheus"), "did you mean 'prometheus'?"),
        (("serve", "--renderer", "qwn3"), "did you mean 'qwen3'?"),
        (("serve", "--kernel", "flot"), "did you mean 'float'?"),
        (("serve", "--kernel", "native@avx51"), "did you mean 'native@avx512'?"),
        (("serve", "--device", "gpu"), "did you mean 'cuda'?"),
        (("serve", "--train-device", "cudda"), "did you mean 'cuda'?"),
        (("serve", "--device", "cuda:97"), "'cuda:97' is not there"),
        (("serve", "--dtype", "bf61"), "did you mean 'bf16'?"),
        (("serve", "--policy-scope", "usr"), "did you mean 'user'?"),
        (("serve", "--algo", "binary", "--algo-options", "rl_wieght=2"), "has no setting 'rl_wieght'"),
        (("serve", "--num-threads", "two"), "num_threads is 'two'; it must be a whole number"),
        (("serve", "--train-base", "int8"), "did you mean 'int4'?"),
        (("serve", "--train-base", "int4", "--finetune", "full"), "--train-base int4 is for adapters"),
        (("serve", "--engine", "vllm", "--kernel", "float"), "is a setting of --engine local, not of vllm"),
        (("serve", "--engine", "vllm", "--engine-options", "ulr=x"), "did you mean 'url'?"),
        (
            ("serve", "--engine", "tinker", "--trainer", "tinker", "--kl-coefficient", "0.1"),
            "--kl-coefficient is not for --trainer tinker; leave it out",
        ),
        (
            ("serve", "--engine", "tinker", "--trainer", "tinker", "--lora-targets", "mlp"),
            "--lora-targets is not for --trainer tinker; leave it out",
        ),
        (("learn", "--judge", "lable"), "did you mean 'label'?"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, tuple) else "",
)
def test_before_anything_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    home = tmp_path / "home"
    assert main([*arguments, "--home", str(home), "--model", "/nowhere"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("openclaw-rl: ")
    assert message in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out == ""
    assert not home.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serv",), "did you mean 'serve'?"),
        (("serve", "--algoo", "x"), "did you mean '--algo'?"),
        (("serve", "--prot=1"), "did you mean '--port'?"),
        (("keys", "lst"), "did you mean 'list'?"),
        (("connect", "claude"), "did you mean 'claude-code'?"),
        (("users", "quotas", "ann"), "did you mean 'quota'?"),
    ],
    ids=" ".join,
)
def test_what_was_typed(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert message in said
    assert len(said.splitlines()) == 1, "no page of usage"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[engine]\nmodle = "x"', "unknown setting engine.modle; did you mean 'engine.model'?"),
        ('[serve]\nmodel = "x"', "unknown setting serve.model; did you mean 'engine.model'?"),
        ("port = 1", "unknown setting port; did you mean 'serve.port'?"),
        ('[serve]\nport = "abc"', "setting serve.port is 'abc'; it must be a whole number"),
        ("[serve]\nport = 70000", "setting serve.port is 70000; it must be less than or equal to 65535"),
        ('[serve]\nauth = "maybe"', "setting serve.auth is 'maybe'; it must be true or false"),
        (
            '[serve]\nnotes = "onn"',
            "setting serve.notes is 'onn'; it must be 'off', 'ask' or 'on'; did you mean 'on'?",
        ),
        ('[learn]\nteacher = "bsae"', "did you mean 'base'?"),
        ("[xyzzy]\na = 1", "unknown setting xyzzy"),
    ],
)
def test_in_the_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(ValueError, match="setting") as caught:
        load_config(environment={"OPENCLAW_RL_HOME": str(tmp_path)})
    assert message in str(caught.value)


def test_in_the_environment(tmp_path: Path) -> None:
    home = {"OPENCLAW_RL_HOME": str(tmp_path)}
    with pytest.raises(ValueError, match="OPENCLAW_RL_MODLE; did you mean OPENCLAW_RL_MODEL"):
        load_config(environment={**home, "OPENCLAW_RL_MODLE": "x"})
    own = {"OPENCLAW_RL_GREETING": "a part of somebody's own", "OPENCLAW_RL_CACHE": "/c"}
    secrets = {"OPENCLAW_RL_API_KEY": "k", "OPENCLAW_RL_JUDGE_API_KEY": "k"}
    assert load_config(environment={**home, **own, **secrets}).home == tmp_path


def test_the_cpu_is_always_there() -> None:
    assert pick_device("cpu") == "cpu"


def test_looking_at_keys_makes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = ("--home", str(tmp_path))
    assert main(["keys", "list", *home]) == 0
    said = capsys.readouterr()
    assert (said.out, "no keys" in said.err) == ("", True)
    assert main(["users", "list", *home]) == 0
    assert main(["status", *home]) == 2
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("OPENCLAW_RL_API_KEY", "sk-secret")
    assert main(["keys", "list", *home]) == 0
    said = capsys.readouterr()
    assert "counts as the key of 'default'" in said.err
    assert "sk-secret" not in said.out + said.err


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(json.dumps({f"u{n}": "k" * 100 for n in range(2000)}))
    reader, writer = os.pipe()
    os.close(reader)
    listed = subprocess.run(
        [command(), "keys", "list"],
        env=clean_environment(tmp_path),
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(writer)
    assert listed.stderr == ""
    assert listed.returncode == 141


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("import", "/nowhere/old.json"), "No such file or directory: '/nowhere/old.json'"),
        (("status", "--url", "http://127.0.0.1:9", "--key", "k"),
         "the server at http://127.0.0.1:9 does not answer: Connection refused"),
    ],
)  # fmt: skip
def test_the_system_s_errors_are_told_without_their_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert main([*arguments, "--home", str(tmp_path / "home")]) == 2
    assert capsys.readouterr().err == f"openclaw-rl: {message}\n"


class Page(BaseHTTPRequestHandler):
    """Another program's."""

    says = b"<html>It works!</html>"

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.says)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


def test_another_server_at_the_address_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert main(["status", "--url", url, "--key", "k", "--home", str(tmp_path / "home")]) == 2
        server.shutdown()
    assert capsys.readouterr().err == f"openclaw-rl: what answers at {url} is no server of openclaw-rl\n"


@pytest.mark.parametrize("says", [b"{}", b"[]", b'{"engine": 1}'])
def test_another_program_at_the_port_tells_a_client_nothing(says: bytes) -> None:
    program = type("Program", (Page,), {"says": says})
    with HTTPServer(("127.0.0.1", 0), program) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        assert _served(f"http://127.0.0.1:{server.server_port}", "key") == {}
        server.shutdown()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--nope",), "unknown argument --nope"),
        (("--versoin",), "did you mean '--version'?"),
        (("policy",), "action is missing; known: list, show, "),
        (("forget",), "what is missing; known: turn, session, wish, user"),
    ],
)
def test_what_is_unknown_or_missing_is_named(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
