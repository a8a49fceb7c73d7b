"""A stored request reads as it did when it was answered."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw_rl.capture.stored import stored_request
from openclaw_rl.serve.chat import to_internal
from openclaw_rl.serve.chat_wire import ChatCompletionRequest
from openclaw_rl.types import SamplingParams, TurnRecord

TOOL = {"type": "function", "function": {"name": "look", "description": None}}
CALL = {"id": "1", "type": "function", "function": {"name": "look"}}
TALK: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "Half a \ud83d"}, {"type": "image_url"}]},
    {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [CALL]},
    {"role": "tool", "content": "nothing", "tool_call_id": "1", "name": "look"},
]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"tool_choice": "none"},
        {"tool_choice": "required", "chat_template_kwargs": {"enable_thinking": True}},
        {"response_format": {"type": "json_object"}, "chat_template_kwargs": {"enable_thinking": True}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}},
        {"response_format": {"type": "text"}, "chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_it_is_what_the_gateway_made_of_it(params: dict[str, Any]) -> None:
    body = {"model": "m", **params, "messages": TALK, "tools": [TOOL]}
    then = to_internal(ChatCompletionRequest.model_validate(body), body, "ann", {})
    turn = TurnRecord(
        "t", "s", "ann", "chat", "main", TALK, [TOOL], {"model": "m", **params}, {}, [], [],
        SamplingParams(1), 0, "stop", 0.0,
    )  # fmt: skip
    now = stored_request(turn)
    assert (now.messages, now.tools, now.thinking) == (then.messages, then.tools, then.thinking)
    assert now.messages[1]["content"] == "Half a \ufffd[image_url]"
