"""Addresses in what people send are never opened, whatever field they are in."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.security.conftest import Live, chat


@pytest.fixture
def trap() -> Iterator[socket.socket]:
    """Whoever connects to it was led there."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def led_there(trap: socket.socket) -> bool:
    try:
        trap.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def requests_with(url: str) -> dict[str, tuple[str, object]]:
    asked = {"model": "scripted", "max_tokens": 9}
    schema = {"type": "object", "properties": {"a": {"$ref": url}}}
    tool = {"name": "look", "description": url, "parameters": schema}
    image = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    source = {"type": "url", "url": url}
    items = [{"type": "input_image", "image_url": url}, {"type": "input_file", "file_url": url}]
    return {
        "an image": ("/v1/chat/completions", {**asked, "messages": [{"role": "user", "content": image}]}),
        "a tool's schema": (
            "/v1/chat/completions",
            chat(tools=[{"type": "function", "function": tool}], tool_choice="required"),
        ),
        "a schema of the reply": (
            "/v1/chat/completions",
            chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}),
        ),
        "an image of the Messages API": (
            "/v1/messages",
            {**asked, "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]},
        ),
        "a document": (
            "/v1/messages",
            {**asked, "messages": [{"role": "user", "content": [{"type": "document", "source": source}]}]},
        ),
        "a file of the Responses API": (
            "/v1/responses",
            {"model": "scripted", "input": [{"role": "user", "content": items}]},
        ),
        "a tool server": (
            "/v1/responses",
            {"model": "scripted", "input": "Hi", "tools": [{"type": "mcp", "server_url": url}]},
        ),
        "a web hook": ("/v1/responses", {"model": "scripted", "input": "Hi", "webhook_url": url}),
        "a model's name": ("/v1/chat/completions", {**chat(), "model": url}),
        "what the model reads": ("/v1/chat/completions", chat(f"Open {url} and say what is there.")),
    }


@pytest.mark.parametrize("field", requests_with(""))
def test_nothing_is_fetched(live: Live, trap: socket.socket, field: str) -> None:
    path, body = requests_with(f"http://127.0.0.1:{trap.getsockname()[1]}/secret")[field]
    with live.client() as client:
        answer = client.post(path, json=body)
        client.get("/v1/sessions")
    assert answer.status_code in (200, 400, 404), answer.text
    assert not led_there(trap)


def test_the_trap_notices(trap: socket.socket) -> None:
    """Or none of the above would say anything."""
    with socket.create_connection(trap.getsockname()):
        assert led_there(trap)
