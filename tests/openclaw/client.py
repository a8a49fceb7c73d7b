"""The real OpenClaw client in a folder of its own: from npm, set up by our command, run headless."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from openclaw_rl.testing import ServerProcess, clean_environment, command, wait_until

_REPOSITORY = Path(__file__).parents[2]
Json = dict[str, Any]
TOOLS = ("read", "write", "edit", "exec")


def install() -> Path:
    """The folder with the pinned client and its node."""
    done = subprocess.run(
        [_REPOSITORY / "scripts" / "openclaw-client"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
    )
    return Path(done.stdout.strip())


class OpenClaw:
    """One gateway of OpenClaw with its own home, workspace and settings."""

    def __init__(self, folder: Path, installed: Path, server: ServerProcess, max_tokens: int = 48) -> None:
        self.folder, self.server, self.max_tokens = folder, server, max_tokens
        self.workspace, self.state = folder / "workspace", folder / "state"
        self.settings = self.state / "openclaw.json"
        self.port, self.token = free_port(), secrets.token_hex(16)
        self._program = installed / "client" / "node_modules" / ".bin" / "openclaw"
        for name in ("home", "tmp", "workspace", "state"):
            (folder / name).mkdir(parents=True)
        nodes = installed / "node" / "node_modules" / "node" / "bin"
        self._environment = {
            **clean_environment(server.home),
            "PATH": f"{nodes}:{os.environ['PATH']}",
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "OPENCLAW_STATE_DIR": str(self.state),
            "OPENCLAW_CONFIG_PATH": str(self.settings),
            "OPENCLAW_NO_AUTO_UPDATE": "1",
            "DO_NOT_TRACK": "1",
            "NO_COLOR": "1",
        }
        self.connected = ""
        self._process: subprocess.Popen[bytes] | None = None

    # --- setting it up -----------------------------------------------------------------------

    def set_up(self, *, plugin: bool, tools: Sequence[str] = TOOLS, short: bool = False) -> None:
        """Settings as a user has them, then ``openclaw-rl connect openclaw --write``.

        Without the plugin, everything that lets OpenClaw name its sessions is taken out as well. ``short``
        gives a small model a prompt that it can follow.
        """
        self.settings.write_text(json.dumps(self._users_settings(list(tools)), indent=2))
        self.connected = self.connect("--write")
        tree = json.loads(self.settings.read_text())
        if short:
            entry = tree["plugins"]["entries"]["openclaw-rl"]
            entry["config"] = {"systemPrompt": "You are a helpful assistant."}
            tree["agents"]["list"][0]["params"] = {"temperature": 0.7}
        if not plugin:
            del tree["plugins"]["load"], tree["plugins"]["entries"]
            compat = tree["models"]["providers"]["openclaw-rl"]["models"][0]["compat"]
            del compat["sendSessionAffinityHeaders"], compat["supportsPromptCacheKey"]
            shutil.rmtree(self.state / "openclaw-rl-plugin")
        self.settings.write_text(json.dumps(tree, indent=2))

    def connect(self, *arguments: str) -> str:
        done = subprocess.run(
            [command(), "connect", "openclaw", *arguments, "--default-max-tokens", str(self.max_tokens)],
            env=self._environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _users_settings(self, tools: list[str]) -> Json:
        return {
            "agents": {
                "defaults": {
                    "workspace": str(self.workspace),
                    "skipBootstrap": True,
                    "heartbeat": {"every": "0m"},
                },
                # The tool that starts helpers is long to describe, so only one agent has it.
                "list": [
                    {
                        "id": "main",
                        "default": True,
                        "workspace": str(self.workspace),
                        "tools": {"allow": tools},
                    },
                    {"id": "boss", "tools": {"allow": ["sessions_spawn"]}},
                ],
            },
            "tools": {"allow": [*tools, "sessions_spawn"]},
            "models": {"catalogRefresh": {"enabled": False}},
            "plugins": {"slots": {"memory": "none"}},
            "gateway": {
                "mode": "local",
                "bind": "loopback",
                "port": self.port,
                "auth": {"mode": "token", "token": self.token},
                "http": {"endpoints": {"chatCompletions": {"enabled": True}}},
            },
            "update": {"checkOnStart": False},
            "telemetry": {"enabled": False},
            "discovery": {"mdns": {"mode": "off"}},
            "logging": {"file": str(self.folder / "openclaw.log")},
        }

    # --- running it --------------------------------------------------------------------------

    def run(self, *arguments: str, timeout_s: float = 180) -> str:
        """One command of OpenClaw; what it says on standard output."""
        done = subprocess.run(
            [self._program, *arguments], env=self._environment, cwd=self.folder,
            capture_output=True, text=True, timeout=timeout_s,
        )  # fmt: skip
        assert done.returncode == 0, (
            f"openclaw {' '.join(arguments)}\n{done.stdout}\n{done.stderr}\n{self.log()}"
        )
        return done.stdout

    def call(self, method: str, parameters: Mapping[str, Any]) -> Json:
        """A method of the running gateway."""
        said = self.run(
            "gateway", "call", method, "--params", json.dumps(parameters), "--json", "--timeout", "300000",
            timeout_s=330,
        )  # fmt: skip
        return json.loads(said[said.index("{") :])  # type: ignore[no-any-return]

    def start(self) -> OpenClaw:
        with (self.folder / "gateway.txt").open("ab") as output:
            self._process = subprocess.Popen(
                [self._program, "gateway", "run", "--port", str(self.port), "--bind", "loopback"],
                env=self._environment, cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        wait_until(self._is_up, "OpenClaw's gateway answers", 120)
        return self

    def _is_up(self) -> bool | None:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=2).is_success or None
        except httpx.TransportError:
            return None

    def ask(self, user: str, text: str, agent: str = "main", timeout_s: float = 300) -> str:
        """One message in that user's session, the way a channel brings it; the agent's last words."""
        answer = httpx.post(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            headers={"authorization": f"Bearer {self.token}"},
            json={
                "model": f"openclaw/{agent}",
                "user": user,
                "messages": [{"role": "user", "content": text}],
            },
            timeout=timeout_s,
        )
        assert answer.is_success, f"{answer.status_code} {answer.text}\n{self.log()}"
        return str(answer.json()["choices"][0]["message"]["content"])

    def session_id(self, user: str, agent: str = "main") -> str:
        """OpenClaw's own name of that user's session."""
        key = session_key(user, agent)
        return next(
            str(session["sessionId"])
            for session in self.call("sessions.list", {})["sessions"]
            if session["key"] == key
        )

    def errors(self) -> list[str]:
        """What it logged as an error."""
        # Not splitlines: replies are logged, too, and may hold characters that end lines elsewhere.
        lines = (self.folder / "openclaw.log").read_text(errors="replace").split("\n")
        records = [json.loads(line) for line in lines if line.startswith("{")]
        return [r["message"] for r in records if r["_meta"]["logLevelName"] in ("ERROR", "FATAL")]

    def log(self) -> str:
        """What the gateway printed and logged, newest last."""
        files = [self.folder / "gateway.txt", self.folder / "openclaw.log"]
        return "\n".join(path.read_text(errors="replace")[-8000:] for path in files if path.exists())

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def session_key(user: str, agent: str = "main") -> str:
    return f"agent:{agent}:openai-user:{user}"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
