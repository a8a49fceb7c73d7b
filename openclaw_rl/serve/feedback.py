"""Routes by which people say what they think of a reply, and what may be learned from."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from openclaw_rl.errors import RequestError, or_not_found
from openclaw_rl.messages import internal_message
from openclaw_rl.serve.chat_wire import MessageIn
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.inspection import Inspection
from openclaw_rl.serve.permissions import own_scope
from openclaw_rl.serve.signin import limited_to
from openclaw_rl.serve.text import WellFormed
from openclaw_rl.types import Json, Message


class Feedback(WellFormed):
    """A person's own word about a reply; it outranks every vote."""

    id: str
    rating: Literal["up", "down"] | None = None
    score: Annotated[float, Field(ge=-1, le=1)] | None = None
    text: Annotated[str, Field(max_length=4000)] | None = None

    def stated_score(self) -> int:
        if self.rating is None and self.score is None:
            raise RequestError(
                "Feedback needs a rating (up or down) or a score from -1 to 1.", param="rating"
            )
        value = self.score if self.score is not None else (1 if self.rating == "up" else -1)
        return (value > 0) - (value < 0)


class Closing(WellFormed):
    """How a session ended."""

    messages: Annotated[list[MessageIn], Field(default_factory=list)]
    """What followed the last reply, such as a tool's result, so that the reply is judged by it."""

    def internal(self) -> list[Message]:
        return [internal_message(message.model_dump(exclude_none=True)) for message in self.messages]


def feedback_routes(inspection: Inspection, gateway: Gateway) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/sessions/{session_id:path}/close", tags=["feedback"])
    async def close_session(session_id: str, request: Request, parsed: Closing | None = None) -> Json:
        """Ends a session. Its last reply is judged by ``messages``, such as a tool's result, if given."""
        found = await asyncio.to_thread(
            inspection.session, session_id, limited_to(request), None, None, False
        )
        turns = or_not_found(found, "session", session_id)["turns"]
        if turns and parsed is not None and (following := parsed.internal()):
            await inspection.record_event(turns[-1]["id"], "next_state", {}, following)
        if turns:
            await inspection.record_event(turns[-1]["id"], "closed", {})
        return {"id": session_id, "closed": True}

    @router.post("/v1/feedback", tags=["feedback"])
    async def feedback(parsed: Feedback, request: Request) -> Json:
        """Rates a reply; overrides the judge."""
        or_not_found(
            await asyncio.to_thread(inspection.turn, parsed.id, limited_to(request)), "turn", parsed.id
        )
        score = parsed.stated_score()
        await inspection.record_event(
            parsed.id, "feedback", {"score": score, "text": parsed.text, "by": request.state.user}
        )
        return {"id": parsed.id, "score": score}

    @router.post("/v1/flush", tags=["feedback"])
    async def flush(request: Request) -> Json:
        """Judges and trains what is waiting now; the owner's key does so for everybody."""
        mine = {} if limited_to(request) is None else {"scope": own_scope(request, gateway)}
        await inspection.record_event(None, "flush", mine)
        return {"status": "ok"}

    return router


def exclusion_routes(inspection: Inspection) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/turns/{turn_id}/exclude", tags=["feedback"])
    async def exclude_turn(turn_id: str, request: Request) -> Json:
        """Never learns from this turn. 409 if a version already has."""
        try:
            done = await inspection.exclude_turn(turn_id, limited_to(request), request.state.user)
        except ValueError as error:
            raise RequestError(str(error), status=409, code="conflict") from None
        return or_not_found(done, "turn", turn_id)

    @router.post("/v1/sessions/{session_id:path}/exclude", tags=["feedback"])
    async def exclude_session(session_id: str, request: Request) -> Json:
        """Never learns from this session."""
        done = await inspection.exclude_session(session_id, limited_to(request), request.state.user)
        return or_not_found(done, "session", session_id)

    @router.post("/v1/turns/{turn_id}/include", tags=["feedback"])
    async def include_turn(turn_id: str, request: Request) -> Json:
        """Undoes exclude."""
        done = await inspection.include_turn(turn_id, limited_to(request), request.state.user)
        return or_not_found(done, "turn", turn_id)

    @router.post("/v1/sessions/{session_id:path}/include", tags=["feedback"])
    async def include_session(session_id: str, request: Request) -> Json:
        """Undoes exclude."""
        done = await inspection.include_session(session_id, limited_to(request), request.state.user)
        return or_not_found(done, "session", session_id)

    return router
