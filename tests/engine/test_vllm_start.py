"""What vLLM's engine says where there is no vLLM."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from openclaw_rl.config import EngineConfig
from openclaw_rl.engine import EngineParts, create_engine
from openclaw_rl.engine.vllm_server import VllmServer


def make(folder: Path, **options: str) -> None:
    create_engine(EngineParts(folder, EngineConfig(engine="vllm", engine_options=options)))


def test_an_interpreter_without_vllm_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no vLLM in .*: install it .* python=.* url="):
        make(tmp_path)
    with pytest.raises(ValueError, match="cannot run /nowhere/python"):
        make(tmp_path, python="/nowhere/python")


def test_a_url_where_nobody_listens_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no vLLM at http://127.0.0.1:9/v1 .*start it first"):
        make(tmp_path, url="http://127.0.0.1:9/v1")


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """Whatever runs as vLLM; here, a package that fails as vLLM does."""
    entry = tmp_path / "vllm" / "entrypoints" / "openai"
    entry.mkdir(parents=True)
    (entry / "api_server.py").write_text("raise ValueError('no room for the model')")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH="{tmp_path}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    with pytest.raises(ValueError, match=r"did not start \(exit code 1\): ValueError: no room for the model"):
        VllmServer(tmp_path, [], str(python))
