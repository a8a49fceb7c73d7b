"""Reads a stored turn's request in the internal form, for learning and the judge.

Turns hold chat-completions JSON as sent; see ``TurnRecord``. Nothing is validated again, since only valid
requests are stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.messages import NOTE, internal_message, internal_tools, thinking, with_note
from openclaw_rl.text import well_formed
from openclaw_rl.types import Json, Message, Tool, TurnRecord


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """The parts of a request that determine its prompt."""

    messages: list[Message]
    tools: list[Tool]
    thinking: bool | None


def stored_messages(messages: list[Json]) -> list[Message]:
    """As sent: without the note that was added to the prompt."""
    return [internal_message(message) for message in messages]


def stored_request(turn: TurnRecord) -> StoredRequest:
    """Renders to the turn's prompt under the same chat template."""
    messages, note = turn.messages, turn.params.get(NOTE)
    body: Json = well_formed(
        {**turn.params, "messages": with_note(messages, note) if note else messages, "tools": turn.tools}
    )
    return StoredRequest(stored_messages(body["messages"]), internal_tools(body), thinking(body))
