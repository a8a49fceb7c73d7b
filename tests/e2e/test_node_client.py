from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.testing import ServerProcess

MODEL = "SmolLM2-135M-Instruct"


@pytest.mark.node
def test_the_npm_client(
    server: ServerProcess, node_client: Path, require: Callable[[str, str], Path]
) -> None:
    result = subprocess.run(
        [require("node", "nodejs"), "client.mjs"],
        cwd=node_client,
        env={**os.environ, "BASE_URL": f"{server.url}/v1", "API_KEY": server.key, "MODEL": MODEL},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert result.returncode == 0, result.stderr
    seen: dict[str, Any] = json.loads(result.stdout)

    whole, streamed = seen["whole"], seen["streamed"]
    assert whole["usage"]["completion_tokens"] == streamed["usage"]["completion_tokens"] <= 12
    assert whole["choice"]["message"]["content"] == streamed["content"] == seen["helper"] != ""
    assert whole["choice"]["finish_reason"] == streamed["finish_reason"]
    assert streamed["chunks"] > 3
    assert whole["id"] != streamed["id"]

    for choice in (seen["tools"], seen["toolsStreamed"]):
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
        assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}

    assert seen["errors"] == {
        "unknownModel": {"kind": "NotFoundError", "status": 404, "code": "model_not_found"},
        "badRequest": {"kind": "BadRequestError", "status": 400, "code": "invalid_value"},
        "wrongKey": {"kind": "AuthenticationError", "status": 401, "code": "invalid_api_key"},
    }
    assert seen["models"] == [MODEL, f"{MODEL}@0"]
