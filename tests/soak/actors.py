"""The processes that are killed: both halves of the real system, a prune and a backup.

They are forked from a process that has imported everything, so that a start costs little and kills can come
at any moment of it. The model is the scripted one, whose weights are a few bytes, or the real default one.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from transformers import LlamaConfig

from openclaw_rl.commands.cli import main
from openclaw_rl.config import Config, load_config
from openclaw_rl.engine import EngineParts
from openclaw_rl.processes.learning import learn
from openclaw_rl.processes.serving import serve
from openclaw_rl.processes.supervise import die_with_parent
from openclaw_rl.testing import ScriptedEngine, ScriptedTrainer, byte_tokenizer
from openclaw_rl.train import TrainerParts
from openclaw_rl.types import Json
from openclaw_rl.types.lora import ADAPTER_FILE
from tests.soak.clock import DAY_S, Clock

SERVED_NAME = "soak"


class Engine(ScriptedEngine):
    """The scripted engine, by the name in the settings."""

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(byte_tokenizer())
        self.requests = _Nothing()


class _Nothing(list[Any]):
    """Keeps nothing, so that what a process keeps is its own."""

    def append(self, item: object) -> None:
        """Forgets it."""


class Trainer(ScriptedTrainer):
    """Leaves weights as every trainer does, so that their checksums are kept and verified."""

    def __init__(self, parts: TrainerParts) -> None:
        super().__init__()
        self.batches = _Nothing()

    def save(self, folder: Path, state: Json) -> str | None:
        (folder / ADAPTER_FILE).write_bytes(os.urandom(4096))
        return super().save(folder, state)


def model_folder(folder: Path) -> Path:
    """All that is read of a model here: its description and its tokenizer. The weights are never used."""
    LlamaConfig(num_hidden_layers=1).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    save_file({"weight": np.zeros(1, np.float32)}, folder / "model.safetensors")
    return folder


def settings(home: Path, model: Path | None, port: int = 0, **other: object) -> Config:
    """``model`` None: the real default one, with its engine, trainer, judge and gate."""
    stated: dict[str, object] = {
        "home": home, "port": port, "learn": False, "served_model_name": SERVED_NAME, "log_level": "error",
        "batch_size": 4, "held_out_share": 0.0,
    }  # fmt: skip
    if model is not None:
        stated |= {
            "model": str(model), "renderer": "qwen3", "engine": "tests.soak.actors:Engine",
            "trainer": "tests.soak.actors:Trainer", "judge": "openclaw_rl.testing:WordJudge",
            "algo": "binary",
        }  # fmt: skip
    return load_config(stated | other, environment={})


# --- what runs in the processes --------------------------------------------------------------


def run_serve(home: Path, model: Path | None, port: int) -> None:
    asyncio.run(serve(settings(home, model, port), lambda line: None))


def run_learn(home: Path, model: Path | None, **other: object) -> None:
    asyncio.run(learn(settings(home, model, **other)))


def run_prune(home: Path, idle_s: float) -> None:
    """With a clock that is a day ahead: a conversation counts as over after a day, here after seconds."""
    clock = Clock(home.parent / "prune.clock")
    clock.set_ahead(DAY_S - idle_s)
    clock.install()
    run_command("data", "prune", "--older-than", "0", "--home", str(home))


def run_backup(home: Path, file: Path) -> None:
    run_command("backup", str(file), "--home", str(home))


def run_command(*arguments: str) -> None:
    if code := main(arguments):
        raise SystemExit(code)


# --- starting and killing them ---------------------------------------------------------------


@cache
def _context() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.soak.preloaded"])
    return context


def _stands_still(pid: int) -> bool:
    states = []
    for file in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # the thread ended
            states.append(file.read_text().rpartition(")")[2].split()[0])
    return all(state in "TtZX" for state in states)


def _begin(log: Path, act: Callable[..., None], arguments: Sequence[object]) -> None:
    die_with_parent(signal.SIGKILL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    act(*arguments)


class Actor:
    """One process, started again whenever it was killed."""

    def __init__(self, log: Path, act: Callable[..., None], *arguments: object) -> None:
        self._begin = log, act, arguments
        self.process: BaseProcess | None = None

    def start(self) -> Actor:
        self.process = _context().Process(target=_begin, args=self._begin, daemon=True)
        self.process.start()
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        assert self.process.pid is not None
        return self.process.pid

    def kill(self) -> bool:
        """Whether it was alive."""
        assert self.process is not None
        alive = self.process.is_alive()
        self.process.kill()
        self.process.join()
        return alive

    def freeze(self) -> None:
        """Returns when all its threads stand still, which a signal by itself does not wait for."""
        self._signal(signal.SIGSTOP)
        while self.process is not None and self.process.is_alive() and not _stands_still(self.pid):
            time.sleep(0.001)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.is_alive():
            os.kill(self.pid, number)

    def stop(self) -> bool:
        """As a system does that shuts down; whether it ended well."""
        assert self.process is not None
        self.process.terminate()
        return self.finish(120)

    def finish(self, timeout_s: float) -> bool:
        """Whether it ended by itself, and well."""
        assert self.process is not None
        self.process.join(timeout_s)
        return self.process.exitcode == 0
