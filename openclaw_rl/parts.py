"""The parts that both processes, the commands and the tests are made of, as the settings name them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from openclaw_rl.capture.journal import Journal
from openclaw_rl.capture.ledger import Ledger, sqlite_url
from openclaw_rl.config import Config
from openclaw_rl.engine import EngineParts, create_engine
from openclaw_rl.models import eos_ids
from openclaw_rl.render import create_renderer
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import Engine, Renderer

#: The kernel allows 107 bytes.
_MAX_SOCKET_PATH = 100


def build_engine(config: Config, path: Path) -> Engine:
    return create_engine(EngineParts(path, config.engine))


def load_tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def build_renderer(config: Config, path: Path, tokenizer: Any = None) -> Renderer:
    from transformers import AutoConfig

    model_type = AutoConfig.from_pretrained(path).model_type
    return create_renderer(
        tokenizer or load_tokenizer(path), model_type, config.engine.renderer, eos_ids(path)
    )


def open_ledger(config: Config) -> Ledger:
    return Ledger(config.ledger.ledger_url or sqlite_url(config.home / "serve.db"))


def open_journal(config: Config) -> Journal:
    return Journal(config.ledger.ledger_url or sqlite_url(config.home / "learn.db"))


def open_store(config: Config) -> PolicyStore:
    return PolicyStore(config.learn.policies or config.home / "policies")


def engine_socket(config: Config) -> Path:
    """In the data folder; where that path is too long for a socket, in a private temporary folder."""
    path = config.home / "engine.sock"
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        return path
    folder = Path(tempfile.gettempdir()) / f"openclaw-rl-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise ValueError(f"{folder} is open to others; remove it, or use a data folder with a shorter path")
    return folder / f"{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]}.sock"
