"""``POST /v1/reactions``: a reaction to a reply becomes feedback on that reply.

For callers that know which message was reacted to: a bot, a bridge, a channel's webhook. Each person's
current reaction counts once: a new one replaces the previous one, and a removed one no longer counts.
Ambiguous reactions are not counted, and the response says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field, StringConstraints

from openclaw_rl.errors import RequestError, not_found
from openclaw_rl.reactions import score_of
from openclaw_rl.serve.inspection import Inspection
from openclaw_rl.serve.signin import limited_to
from openclaw_rl.serve.text import WellFormed
from openclaw_rl.types import Json

_Short = Annotated[str, StringConstraints(max_length=200)]
#: Characters; a shorter beginning of a reply could match several replies.
_MIN_REPLY = 12


class Reaction(WellFormed):
    model_config = ConfigDict(extra="forbid")

    emoji: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    """👍, or a name such as ``thumbsup``."""
    id: _Short | None = None
    """The reply's id …"""
    session_id: _Short | None = None
    reply: Annotated[str, StringConstraints(max_length=100_000)] | None = None
    """… or its session and its text or the beginning of it."""
    action: Literal["added", "removed"] = "added"
    who: _Short = ""
    """Who reacted, if several people see the reply."""
    at: Annotated[float, Field(ge=0, le=1e12)] | None = None
    """Unix time in seconds; a reaction older than the latest known one of the same person is not counted."""


def reaction_routes(inspection: Inspection) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/reactions", tags=["feedback"])
    async def react(parsed: Reaction, request: Request) -> Json:
        """An emoji reaction becomes feedback on the reply."""
        user = limited_to(request)
        turn_id, lack = await asyncio.to_thread(_which, inspection, parsed, user)
        if turn_id is None:
            return {"id": None, "counted": False, "reason": lack}
        known = await asyncio.to_thread(inspection.feedback_of, turn_id)
        lack = _lack(parsed, known)
        if lack is not None:
            return {"id": turn_id, "counted": False, "reason": lack}
        standing = {**_standing(known), parsed.who: _given(parsed)}
        total = sum(standing.values())
        score = (total > 0) - (total < 0)
        data = {"score": score, "text": None, "by": request.state.user, "who": parsed.who, "at": parsed.at,
                "reaction": _given(parsed)}  # fmt: skip
        await inspection.record_event(turn_id, "feedback", data)
        return {"id": turn_id, "counted": True, "score": score}

    return router


def _which(inspection: Inspection, parsed: Reaction, user: str | None) -> tuple[str | None, str | None]:
    """The reply's id, or why it cannot be determined."""
    if parsed.id is not None:
        if inspection.turn(parsed.id, user) is None:
            raise not_found("turn", parsed.id)
        return parsed.id, None
    if parsed.session_id is None or not (parsed.reply or "").strip():
        raise RequestError("Say which reply: its id, or session_id and reply.", param="id")
    replies = inspection.replies_of(parsed.session_id, user)
    if replies is None:
        raise not_found("session", parsed.session_id)
    wanted, texts = _folded(str(parsed.reply)), {i: _folded(text) for i, text in replies.items()}
    found = [i for i, text in texts.items() if text == wanted]
    if not found and len(wanted) >= _MIN_REPLY:
        found = [i for i, text in texts.items() if text.startswith(wanted)]
    if len(found) == 1:
        return found[0], None
    return None, "several replies of this session begin like that" if found else "no reply of this session"


def _lack(parsed: Reaction, known: Sequence[Json]) -> str | None:
    """Why a reaction is not counted; None if it is."""
    score, before = score_of(parsed.emoji), _standing(known).get(parsed.who, 0)
    if score is None:
        return "this emoji may mean anything"
    times = [data["at"] for data in known if data.get("who") == parsed.who and data.get("at") is not None]
    if parsed.at is not None and any(at > parsed.at for at in times):
        return "a later reaction of the same person is known"
    if parsed.action == "removed" and before != score:
        return "this reaction does not stand"
    return "known already" if parsed.action == "added" and before == score else None


def _given(parsed: Reaction) -> int:
    return 0 if parsed.action == "removed" else score_of(parsed.emoji) or 0


def _standing(known: Sequence[Json]) -> dict[str, int]:
    """Who -> score of their current reaction."""
    return {str(data["who"]): int(data["reaction"]) for data in known if "reaction" in data}


def _folded(text: str) -> str:
    return " ".join(text.split())
