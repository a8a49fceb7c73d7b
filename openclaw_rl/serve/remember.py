"""What judged turns taught about a user, said to the model as part of the system prompt.

The note is kept with the turn, so that its prompt can be rebuilt exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from openclaw_rl.types import ChatRequest, Json

#: Under which name a turn's parameters hold the note it was answered with.
FIELD = "hint_memory"


def remembering(request: ChatRequest, note: str) -> ChatRequest:
    return replace(request, messages=with_note(request.messages, note), body={**request.body, FIELD: note})


def with_note(messages: Sequence[Json], note: str) -> list[Json]:
    """The note at the end of the first system message, or as one of its own."""
    for index, message in enumerate(messages):
        if message["role"] in ("system", "developer"):
            content = message.get("content") or ""
            if isinstance(content, str):
                content = f"{content.rstrip()}\n\n{note}".lstrip()
            else:
                content = [*content, {"type": "text", "text": f"\n\n{note}"}]
            return [*messages[:index], {**message, "content": content}, *messages[index + 1 :]]
    return [{"role": "system", "content": note}, *messages]
