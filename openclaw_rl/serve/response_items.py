"""Items of the Responses API: what they may hold, and the chat messages that they stand for."""

from __future__ import annotations

from typing import Any, Literal

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.custom_tools import arguments_of
from openclaw_rl.serve.dialect import Open
from openclaw_rl.types import Json


class ContentPart(Open):
    type: str = "input_text"
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None


class InputItem(Open):
    type: str | None = None
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[ContentPart] | None = None
    summary: list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[ContentPart] | None = None


def to_messages(given_input: str | list[InputItem] | None, field: str = "input") -> list[Json]:
    """What one reply consists of, reasoning, text and calls, becomes one assistant message again.

    ``field`` is where errors say that the items stand.
    """
    if isinstance(given_input, str):
        return [{"role": "user", "content": given_input}]
    messages: list[Json] = []
    for index, item in enumerate(given_input or []):
        kind = item.type or ("message" if item.role else None)
        if kind == "message" and item.role == "assistant":
            _assistant(messages, _starts_anew)["content"] += _text(item.content)
        elif kind == "message":
            messages.append({"role": item.role or "user", "content": _content(item.content)})
        elif kind == "reasoning":
            thought = _text(item.content) or _text(item.summary)
            if thought:
                _assistant(messages, lambda last: True)["reasoning_content"] = thought
        elif kind == "function_call":
            name = in_namespace(item.namespace, item.name) if item.namespace else item.name
            function = {"name": name or "", "arguments": item.arguments or "{}"}
            call = {"id": item.call_id or "", "type": "function", "function": function}
            _assistant(messages, lambda last: False).setdefault("tool_calls", []).append(call)
        elif kind == "custom_tool_call":
            function = {"name": item.name or "", "arguments": arguments_of(item.input or "")}
            call = {"id": item.call_id or "", "type": "function", "function": function}
            _assistant(messages, lambda last: False).setdefault("tool_calls", []).append(call)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            result = {"role": "tool", "tool_call_id": item.call_id or "", "content": _content(item.output)}
            messages.append(result)
        else:
            raise RequestError(
                f"An input item of type {kind!r} cannot be used here; leave it out or say it in words.",
                code="unsupported_content",
                param=f"{field}[{index}]",
            )
    return messages


def _assistant(messages: list[Json], starts_anew: Any) -> Json:
    """The assistant message that is being put together, or a new one."""
    if not messages or messages[-1]["role"] != "assistant" or starts_anew(messages[-1]):
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _starts_anew(last: Json) -> bool:
    """Text after a call of the same reply belongs to it; text after text is another message."""
    return bool(last["content"]) and "tool_calls" not in last


def _text(content: str | list[ContentPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text or part.refusal or "" for part in content)


def _content(content: str | list[ContentPart] | None) -> str | list[Json]:
    if content is None or isinstance(content, str):
        return content or ""
    if all(part.type in ("input_text", "output_text", "text", "refusal") for part in content):
        return _text(content)
    return [_part(part) for part in content]


def _part(part: ContentPart) -> Json:
    if part.type == "input_image" and part.image_url is not None:
        return {"type": "image_url", "image_url": {"url": part.image_url}}
    if part.text is not None:
        return {"type": "text", "text": part.text}
    return {"type": part.type}


def in_namespace(namespace: str | None, name: str | None) -> str:
    return f"{namespace or ''}__{name or ''}"
