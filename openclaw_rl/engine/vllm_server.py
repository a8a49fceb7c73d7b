"""A vLLM server process: started on a private socket, restarted when it dies, and stopped with us.

Requests wait during a restart. If the server cannot start, the error quotes its own output.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)
_START_S = 900.0
_FIRST_PAUSE_S, _MAX_PAUSE_S, _STABLE_S = 1.0, 60.0, 120.0
_PR_SET_PDEATHSIG = 1
_REMEDY = (
    "install it beside us (pip install vllm), name an interpreter that has it "
    "(--engine-options python=/path/to/venv/bin/python), or a server that runs (--engine-options url=http://…)"
)


class VllmServer:
    """One process for one model folder. ``problem`` says why it is unavailable."""

    def __init__(self, model: Path, flags: list[str], python: str) -> None:
        self.problem: str | None = None
        self.num_restarts = 0
        python = python or sys.executable
        has_vllm = [python, "-c", "import importlib.util as u; raise SystemExit(u.find_spec('vllm') is None)"]
        try:
            missing = subprocess.run(has_vllm, check=False, capture_output=True).returncode != 0
        except OSError as error:
            raise ValueError(f"cannot run {python} ({error}); {_REMEDY}") from None
        if missing:
            raise ValueError(f"there is no vLLM in {python}: {_REMEDY}")
        self._folder = Path(tempfile.mkdtemp(prefix="openclaw-rl-vllm-"))
        self.socket = self._folder / "vllm.sock"
        entry = [python, "-m", "vllm.entrypoints.openai.api_server"]
        self._command = [*entry, "--model", str(model), "--uds", str(self.socket), *flags]
        self._last_lines: deque[str] = deque(maxlen=30)
        self._closing = threading.Event()
        self._child = self._start()
        try:
            self._await_health()
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._watch, name="vllm", daemon=True).start()

    def _start(self) -> subprocess.Popen[str]:
        self.socket.unlink(missing_ok=True)
        child = subprocess.Popen(
            self._command,
            env={**os.environ, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_NO_USAGE_STATS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # so that its child processes can be killed with it
            preexec_fn=_die_with_parent,
        )
        self._reader = threading.Thread(target=self._read, args=(child,), name="vllm-log", daemon=True)
        self._reader.start()
        return child

    def _read(self, child: subprocess.Popen[str]) -> None:
        """Keep the last lines for errors. They may hold prompts, so they are logged only at debug."""
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                self._last_lines.append(line.rstrip())
                log.debug("vllm: %s", line.rstrip())

    def _await_health(self) -> None:
        began = time.monotonic()
        while not self._is_healthy():
            if (code := self._child.poll()) is not None:
                self._reader.join(5)
                raise ValueError(f"vLLM did not start (exit code {code}): {self._reason()}")
            if time.monotonic() - began > _START_S:
                raise ValueError(f"vLLM does not answer {_START_S:.0f} s after its start: {self._reason()}")
            if self._closing.wait(0.25):
                raise ValueError("stopped while vLLM was starting")

    def _is_healthy(self) -> bool:
        """Without an HTTP library: none of them closes a socket when nobody listens yet."""
        with socket.socket(socket.AF_UNIX) as asking, suppress(OSError):
            asking.settimeout(5)
            asking.connect(str(self.socket))
            asking.sendall(b"GET /health HTTP/1.1\r\nHost: vllm\r\nConnection: close\r\n\r\n")
            return asking.recv(64).startswith(b"HTTP/1.1 200")
        return False

    def _reason(self) -> str:
        """The last line that looks like an error."""
        lines = [line for line in self._last_lines if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return (errors or lines or ["it said nothing"])[-1]

    def _watch(self) -> None:
        pause_s, started = _FIRST_PAUSE_S, time.monotonic()
        while True:
            code = self._child.wait()
            if self._closing.is_set():
                return
            _kill_group(self._child)  # its remaining children
            self.num_restarts += 1
            if time.monotonic() - started > _STABLE_S:
                pause_s = _FIRST_PAUSE_S
            log.error("vLLM exited (exit code %s); restarting it in %g s", code, pause_s)
            self.problem = f"vLLM ended (exit code {code}) and is being started again"
            if self._closing.wait(pause_s):
                return
            pause_s, started = min(_MAX_PAUSE_S, 2 * pause_s), time.monotonic()
            self._child = self._start()
            try:
                self._await_health()
                self.problem = None
            except ValueError as error:
                self.problem = str(error)
                _kill_group(self._child)

    def close(self) -> None:
        self._closing.set()
        with suppress(ProcessLookupError):
            self._child.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(10)
        _kill_group(self._child)
        self._child.wait()
        self._reader.join(5)
        shutil.rmtree(self._folder, ignore_errors=True)


def _kill_group(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _die_with_parent() -> None:
    """Runs in the child. Linux only; does nothing elsewhere."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def server_flags(max_rank: int, max_adapters: int, max_running: int, more: str) -> list[str]:
    """The flags we rely on come last, so that the user's flags cannot override them."""
    return [
        *shlex.split(more),
        "--max-num-seqs", str(max_running),
        "--max-loras", str(max_adapters),
        "--max-cpu-loras", str(2 * max_adapters),
        "--max-lora-rank", str(max_rank),
        "--enable-lora",
        "--scheduling-policy", "priority",
        "--logprobs-mode", "raw_logprobs",
        "--max-logprobs", "1024",
        "--no-enable-log-requests",
    ]  # fmt: skip
