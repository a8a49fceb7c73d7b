"""Routes by which people look at what was said: sessions, turns, tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request

from openclaw_rl.errors import or_not_found
from openclaw_rl.serve.inspection import Inspection
from openclaw_rl.serve.permissions import visible_user
from openclaw_rl.serve.signin import limited_to
from openclaw_rl.types import Json


def session_routes(inspection: Inspection) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/sessions", tags=["read"])
    def sessions(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        after: str | None = None,
        query: Annotated[str | None, Query(max_length=500)] = None,
        rated: Literal["good", "bad"] | None = None,
        user: Annotated[str | None, Query(max_length=64)] = None,
    ) -> Json:
        """Sessions, newest first. ``query`` searches their text, ``rated`` filters by verdict, ``user`` by
        person (owner only)."""
        return inspection.sessions(limit, after, visible_user(request, user), query, rated)

    @router.get("/v1/sessions/{session_id:path}", tags=["read"])
    def session(
        session_id: str,
        request: Request,
        limit: Annotated[int | None, Query(ge=1, le=1000)] = None,
        after: str | None = None,
        text: bool = False,
    ) -> Json:
        """One session with its turns; ``text=true`` adds input and reply."""
        found = inspection.session(session_id, limited_to(request), limit, after, text)
        return or_not_found(found, "session", session_id)

    @router.get("/v1/turns/{turn_id}", tags=["read"])
    def turn(turn_id: str, request: Request) -> Json:
        """One turn: its state and why, what followed, verdict, version, and the step that learned from it."""
        return or_not_found(inspection.turn(turn_id, limited_to(request)), "turn", turn_id)

    @router.get("/v1/turns/{turn_id}/tokens", tags=["read"])
    def tokens(turn_id: str, request: Request) -> Json:
        """Per token of a reply: log-prob and advantage."""
        return or_not_found(inspection.tokens(turn_id, limited_to(request)), "turn", turn_id)

    return router
