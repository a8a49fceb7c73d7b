"""Nobody's words reach a log, whatever fails; a schema's mistake is the client's, in words."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.engine.grammar import Grammars
from openclaw_rl.errors import GrammarFailed
from openclaw_rl.render import create_renderer
from openclaw_rl.testing import byte_tokenizer, tiny_model
from tests.security.conftest import Live, chat

SECRET = "patient-4711-diagnosis"
CHAT = "/v1/chat/completions"


def failing(live: Live, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def trouble(script: Any, position: int) -> None:
        raise error

    monkeypatch.setattr(live.system.engine, "_trouble", trouble)


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_fails_while_sampling_is_the_schemas_fault(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    failing(live, monkeypatch, GrammarFailed())
    schema = {"type": "object", "properties": {SECRET: {"type": "string"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    with caplog.at_level(logging.INFO), live.client() as client:
        answer = client.post(CHAT, json=chat(SECRET, response_format=wanted, stream=stream))
    if stream:
        assert "make the schema simpler" in answer.text
    else:
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "invalid_schema"
    assert SECRET not in caplog.text


def test_an_engine_that_fails_with_somebodys_words_is_logged_without_them(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing(live, monkeypatch, RuntimeError(f"cannot sample after {SECRET} " + "x" * 90_000))
    with caplog.at_level(logging.INFO), live.client() as client:
        answer = client.post(CHAT, json=chat(SECRET))
    assert answer.status_code == 500
    assert SECRET not in answer.text
    assert SECRET not in caplog.text
    assert "RuntimeError" in caplog.text, "what kind, and where, is said"
    assert max(len(line) for line in caplog.text.splitlines()) < 1000


def test_the_grammar_itself_says_nothing_of_the_schema(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    tokenizer = byte_tokenizer()
    grammars = Grammars(model, len(tokenizer), [tokenizer.eos_token_id])
    schema = {"type": "object", "properties": {SECRET: {"type": "string"}}, "required": [SECRET]}
    grammar = create_renderer(tokenizer, name="qwen3").json_grammar(schema)
    state = grammars.start(grammar, 64)
    with pytest.raises(GrammarFailed) as failed:
        state.consume(tokenizer.encode("n")[0])
    assert SECRET not in str(failed.value)
    assert json.dumps(schema) not in str(failed.value)
