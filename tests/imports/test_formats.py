"""Transcripts as the programs write them, read into conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openclaw_rl.imports import FORMATS, read_text

ASKED, SAID, BETTER = "What is a volcano?", "A long story.", "Shorter, please."


def lines(*rows: Any) -> str:
    return "\n".join(json.dumps(row) for row in rows)


def claude(uuid: str, parent: str | None, kind: str, content: Any, **more: Any) -> Any:
    row = {"uuid": uuid, "parentUuid": parent, "type": kind, "sessionId": "s", "isSidechain": False,
           "version": "2.1.12", "message": {"role": kind, "content": content}}  # fmt: skip
    return {**row, **more}


CLAUDE_CODE = lines(
    {"type": "summary", "summary": "x", "leafUuid": "6"},
    {"type": "file-history-snapshot", "messageId": "1", "snapshot": {}},
    claude("0", None, "user", "Caveat: The messages below were generated", isMeta=True),
    claude("1", "0", "user", f"{ASKED}\n<system-reminder>be good</system-reminder>"),
    claude("2", "1", "assistant", [{"type": "thinking", "thinking": "hm"}]),
    claude("3", "2", "assistant", [{"type": "tool_use", "id": "t1", "name": "Read", "input": {"file": "a"}}]),
    claude("x", "3", "assistant", [{"type": "text", "text": "to itself"}], isSidechain=True),
    claude("4", "3", "user", [{"type": "tool_result", "tool_use_id": "t1", "content": "lava"}]),
    claude("5", "4", "assistant", [{"type": "text", "text": SAID}]),
    claude("5b", "4", "assistant", [{"type": "text", "text": "a reply that was tried before"}]),
    claude("6", "5", "user", BETTER),
)
CODEX = lines(
    {"type": "session_meta", "payload": {"id": "s", "cli_version": "0.65.0", "cwd": "/x"}},
    {"type": "response_item", "payload": {"type": "message", "role": "developer", "content": []}},
    *(
        {"type": "response_item", "payload": {"type": "message", "role": "user",
         "content": [{"type": "input_text", "text": text}]}}
        for text in ("<environment_context>cwd</environment_context>", ASKED)
    ),
    {"type": "event_msg", "payload": {"type": "user_message", "message": ASKED}},
    {"type": "response_item", "payload": {"type": "reasoning", "summary": [], "encrypted_content": "x"}},
    {"type": "response_item", "payload": {"type": "function_call", "name": "Read", "call_id": "t1",
     "arguments": '{"file": "a"}'}},
    {"type": "response_item", "payload": {"type": "function_call_output", "call_id": "t1",
     "output": '{"output": "lava", "metadata": {"exit_code": 0}}'}},
    {"type": "response_item", "payload": {"type": "message", "role": "assistant",
     "content": [{"type": "output_text", "text": SAID}]}},
    {"type": "response_item", "payload": {"type": "message", "role": "user",
     "content": [{"type": "input_text", "text": BETTER}]}},
)  # fmt: skip
OPENCLAW = lines(
    {"type": "session", "version": 3, "id": "s", "timestamp": "2026-09-06T10:00:00Z", "cwd": "/x"},
    {"type": "model_change", "id": "m", "parentId": None, "modelId": "x"},
    {"type": "message", "id": "1", "parentId": "m", "message": {"role": "user",
     "content": [{"type": "text", "text": ASKED}]}},
    {"type": "message", "id": "2", "parentId": "1", "message": {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm"},
        {"type": "toolCall", "id": "t1", "name": "Read", "arguments": {"file": "a"}}]}},
    {"type": "message", "id": "3", "parentId": "2", "message": {"role": "toolResult", "toolCallId": "t1",
     "toolName": "Read", "content": [{"type": "text", "text": "lava"}]}},
    {"type": "message", "id": "4", "parentId": "3", "message": {"role": "assistant",
     "content": [{"type": "text", "text": SAID}]}},
    {"type": "custom", "id": "5", "parentId": "4", "customType": "x", "data": {}},
    {"type": "message", "id": "6", "parentId": "5", "message": {"role": "user", "content": BETTER}},
)  # fmt: skip


def webui(key: str, parent: str | None, role: str, content: str, **more: Any) -> Any:
    return {"id": key, "parentId": parent, "childrenIds": [], "role": role, "content": content, **more}


OPEN_WEBUI = json.dumps([{"id": "c", "title": "Volcano", "chat": {"title": "Volcano", "history": {
    "currentId": "3", "messages": {
        "1": webui("1", None, "user", ASKED),
        "3": webui("3", "2", "user", BETTER),
        "2": webui("2", "1", "assistant", SAID, annotation={"rating": -1}),
        "2b": webui("2b", "1", "assistant", "tried before"),
    }}}}])  # fmt: skip
PLAIN = [("user", ASKED), ("assistant", SAID), ("user", BETTER)]
TOOLS = [("user", ASKED), ("assistant", ""), ("tool", "lava"), ("assistant", SAID), ("user", BETTER)]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("claude-code", CLAUDE_CODE, TOOLS),
        ("codex", CODEX, TOOLS),
        ("openclaw", OPENCLAW, TOOLS),
        ("open-webui", OPEN_WEBUI, PLAIN),
        ("sharegpt", json.dumps([{"conversations": [{"from": "human", "value": ASKED},
            {"from": "gpt", "value": SAID}, {"from": "human", "value": BETTER}]}]), PLAIN),
        ("trajectory", lines({"session_id": "s", "turns": [{"type": "main", "prompt": [{"role": "user",
            "content": ASKED}], "response": {"role": "assistant", "content": SAID},
            "next_state": [{"role": "user", "content": BETTER}]}]}), PLAIN),
        ("messages", lines({"messages": [{"role": r, "content": c} for r, c in PLAIN]}), PLAIN),
    ],
)  # fmt: skip
def test_each_is_recognised_by_its_content(name: str, text: str, said: list[tuple[str, str]]) -> None:
    found, [conversation] = read_text(text)
    assert found == name
    messages = conversation["messages"]
    assert [(message["role"], message["content"]) for message in messages] == said
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    if said is TOOLS:
        [call] = calls
        assert (call["id"], call["function"]["name"]) == ("t1", "Read")
        assert json.loads(call["function"]["arguments"]) == {"file": "a"}
        assert messages[2]["tool_call_id"] == "t1"


def test_every_format_is_tried_above() -> None:
    marks = test_each_is_recognised_by_its_content.pytestmark  # type: ignore[attr-defined]
    assert {case[0] for case in marks[0].args[1]} == set(FORMATS)


def test_ratings_come_along() -> None:
    assert read_text(OPEN_WEBUI)[1][0]["scores"] == {1: -1}


def test_a_line_that_is_being_written_is_left() -> None:
    assert read_text(OPENCLAW + '\n{"type": "mess')[0] == "openclaw"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "neither JSON nor JSON lines"),
        ('{"prompt": "x"}', "known: OpenClaw, Claude Code, Codex, Open WebUI, ShareGPT"),
        ('[{"messages": [{"role": "bot", "content": "x"}]}]', "role is one of system"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "no reply of an assistant"),
        ('{"messages": [{"role": "assistant", "content": "x"}], "score": 7}', "between -1 and 1"),
    ],
)
def test_what_is_no_conversation_is_said(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_text(text)
