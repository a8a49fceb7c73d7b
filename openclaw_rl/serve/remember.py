"""Adds a user's note, learned from judged turns, to the system prompt.

The note is stored with the turn, so that its prompt can be rebuilt exactly.
"""

from __future__ import annotations

from dataclasses import replace

from openclaw_rl.messages import NOTE, with_note
from openclaw_rl.types import ChatRequest


def remembering(request: ChatRequest, note: str) -> ChatRequest:
    return replace(request, messages=with_note(request.messages, note), body={**request.body, NOTE: note})
