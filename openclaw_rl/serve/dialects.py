"""All supported wire formats; a new one is a file in this folder and a line here."""

from __future__ import annotations

from typing import Any

from openclaw_rl.serve.chat import ChatDialect
from openclaw_rl.serve.completions import CompletionsDialect
from openclaw_rl.serve.dialect import Dialect
from openclaw_rl.serve.messages import MessagesDialect
from openclaw_rl.serve.responses import ResponsesDialect

DIALECTS: tuple[Dialect[Any], ...] = (
    ChatDialect(),
    ResponsesDialect(),
    MessagesDialect(),
    CompletionsDialect(),
)


def dialect_of(path: str) -> Dialect[Any]:
    """The dialect for responses to this path; chat completions if no dialect owns it."""
    owners = (d for d in DIALECTS if path == d.path or path.startswith(f"{d.path}/"))
    return next(owners, DIALECTS[0])
