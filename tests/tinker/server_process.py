"""A real SkyRL server on a CPU, with a model that is small enough to learn in seconds."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-engines"


@dataclass
class SkyRL:
    model: Path
    folder: Path
    url: str
    python: Path = ENVIRONMENTS / "skyrl" / "bin" / "python"
    script: Path = HERE / "skyrl_server.py"
    num_adapters: int = 48
    more: tuple[str, ...] = ()
    """More arguments of the server."""
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Checkpoints and database are kept between starts."""
        command = [
            str(self.python), str(self.script), self.url.rpartition(":")[2],
            "--base-model", str(self.model), "--backend", "jax",
            "--backend-config", json.dumps({"max_lora_adapters": self.num_adapters, "max_lora_rank": 8}),
            "--checkpoints-base", str(self.folder / "checkpoints"),
            "--database-url", f"sqlite:///{self.folder / 'tinker.db'}", *self.more,
        ]  # fmt: skip
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        for _ in range(1200):
            try:
                if httpx.get(f"{self.url}/api/v1/healthz", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                assert self.process.poll() is None, (self.folder / "server.log").read_text()[-2000:]
            time.sleep(0.25)
        raise AssertionError("SkyRL did not start")

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def free_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def running(server: SkyRL) -> Iterator[SkyRL]:
    server.start()
    try:
        yield server
    finally:
        server.kill()
        # The client leaves connections open. Collected later, their warnings would be errors elsewhere.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
