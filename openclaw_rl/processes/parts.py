"""Builds the parts shared by both processes, the commands and the tests, from the settings."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.memory import HintMemory
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.config import Config
from openclaw_rl.engine import EngineParts, capabilities_of, create_engine
from openclaw_rl.model_folder import model_type, read_tokenizer
from openclaw_rl.models import (
    DEFAULT_MODEL,
    Recommended,
    default_cache_dir,
    eos_ids,
    resolve_model,
    short_name,
)
from openclaw_rl.plugins import load_object
from openclaw_rl.render import create_renderer
from openclaw_rl.serve.choice import VersionChoice
from openclaw_rl.serve.gateway import Answerer
from openclaw_rl.serve.model_answerer import ModelAnswerer
from openclaw_rl.serve.takeover import TakeOverAnswerer
from openclaw_rl.serve.upstream import UpstreamAnswerer
from openclaw_rl.tinker_service import find_description
from openclaw_rl.train.mirror import MirroredStore
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import EVERYONE, Engine, Json, Renderer, SamplingParams, Scope

#: In bytes; the kernel allows 107.
_MAX_SOCKET_PATH = 100


def find_model(config: Config, progress: Callable[[str], None]) -> Path:
    """The folder of the served model's files, which are downloaded at the first start."""
    path = model_folder(config)
    progress(f"loading {config.engine.model}")
    return path


def model_folder(config: Config) -> Path:
    """With the weights, unless the engine has them elsewhere."""
    able = capabilities_of(config.engine.engine)
    if able is not None and not able.reads_model and config.engine.model != DEFAULT_MODEL:
        return find_description(config.engine.model)
    return resolve_model(config.engine.model, default_cache_dir())


def build_engine(config: Config, path: Path) -> Engine:
    return create_engine(EngineParts(path, config.engine))


def load_tokenizer(path: Path) -> Any:
    try:
        return read_tokenizer(path)
    except Exception as error:  # the library raises whatever its parser does
        problem = str(error).partition("\n")[0]
        raise ValueError(
            f"the tokenizer in {path} cannot be read ({problem}); "
            "remove the folder, and the next start gets the model again"
        ) from None


def build_renderer(config: Config, path: Path, tokenizer: Any = None) -> Renderer:
    return create_renderer(
        tokenizer or load_tokenizer(path), model_type(path), config.engine.renderer, eos_ids(path)
    )


def text_encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False))


def build_answerer(
    config: Config,
    engine: Engine,
    renderer: Renderer,
    recommended: Recommended | None = None,
    fingerprint: str = "",
) -> ModelAnswerer:
    """Answers with the local model; ``recommended`` is the sampling default for requests that set none."""
    sampling = recommended or Recommended()
    return ModelAnswerer(
        engine,
        renderer,
        model_name=config.serve.served_model_name or short_name(config.engine.model),
        defaults=SamplingParams(
            config.serve.default_max_tokens, sampling.temperature, sampling.top_p, sampling.top_k
        ),
        generate=load_object("generate function", config.serve.generate) if config.serve.generate else None,
        fingerprint=fingerprint,
        choice=VersionChoice(
            _manifest_reader(open_store(config)),
            config.serve.elsewhere == "base",
            config.serve.canary_share,
            config.serve.canary_s,
        ),
        scope_of=_scopes_of_versions(open_store(config)),
    )


def _manifest_reader(store: PolicyStore) -> Callable[[int], Json]:
    """Reads a version's manifest; empty if its files are not on this machine."""
    return lambda version: store.manifest(version) if store.exists(version) else {}


def _scopes_of_versions(store: PolicyStore) -> Callable[[int], Scope]:
    """Reads each version's manifest once: a version's scope never changes."""
    known: dict[int, Scope] = {}

    def scope_of(version: int) -> Scope:
        if version not in known and store.exists(version):
            known[version] = store.manifest(version).get("scope", EVERYONE)
        return known.get(version, EVERYONE)

    return scope_of


def build_take_over(config: Config, local: ModelAnswerer) -> TakeOverAnswerer:
    """Answers with an upstream server and the local model, which learns from it."""
    serve = config.serve
    return TakeOverAnswerer(
        local, build_upstream_answerer(config), serve.upstream_model, serve.upstream_first_token_s
    )


def build_upstream_answerer(config: Config) -> UpstreamAnswerer:
    """Answers with an upstream server only: no local model, hence no training."""
    url, key = config.serve.upstream or "", os.environ.get("OPENCLAW_RL_UPSTREAM_API_KEY")
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"--upstream is {url!r}; it must be a URL such as https://api.example.com/v1")
    name = config.serve.served_model_name or "default"
    return UpstreamAnswerer(url, key, name, config.serve.upstream_timeout_s)


def open_serve_ledger(config: Config) -> ServeLedger:
    return ServeLedger(config.ledger.ledger_url or sqlite_url(config.home / "serve.db"))


def open_learn_ledger(config: Config) -> LearnLedger:
    return LearnLedger(config.ledger.ledger_url or sqlite_url(config.home / "learn.db"))


def open_ledgers(config: Config) -> Ledgers:
    serve_ledger = open_serve_ledger(config)
    try:
        return Ledgers.of(serve_ledger, open_learn_ledger(config))
    except BaseException:
        serve_ledger.close()
        raise


def open_store(config: Config) -> PolicyStore:
    """In the data folder, in a folder that hosts share, or in object storage with a local copy."""
    local, stated = config.home / "policies", config.learn.policies
    if stated and "://" in stated:
        return MirroredStore(local, stated)
    return PolicyStore(Path(stated).expanduser() if stated else local)


def engine_socket(config: Config) -> Path:
    """In the data folder; if that path is too long for a socket, in a private temporary folder."""
    path = config.home / "engine.sock"
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        return path
    folder = Path(tempfile.gettempdir()) / f"openclaw-rl-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise ValueError(f"{folder} is open to others; remove it, or use a data folder with a shorter path")
    return folder / f"{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]}.sock"


def gpu_handles(engine: Engine) -> Json | None:
    """Through which the learn process uses the GPU's memory; None for engines without any."""
    offer = getattr(engine, "on_gpu", lambda: None)()
    if offer is None:
        return None
    from openclaw_rl.engine.sharing import offer_to_json

    return offer_to_json(offer)


def build_memory(
    config: Config, ledgers: Ledgers, answerer: Answerer, is_wish: Callable[[str], bool]
) -> HintMemory:
    """Memory notes of users' wishes. Without a local tokenizer, tokens are estimated from characters."""
    renderer = answerer.renderer
    count = (lambda text: len(renderer.encode(text))) if renderer else (lambda text: len(text) // 3)
    everywhere = config.serve.elsewhere == "learned"
    return HintMemory(
        ledgers, is_wish, config.serve.notes == "ask", config.serve.note_tokens, count, everywhere
    )
