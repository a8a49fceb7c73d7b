"""Routes to view, reword and pause wishes."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import ConfigDict, StringConstraints

from openclaw_rl.errors import RequestError, not_found
from openclaw_rl.secret_scan import find_secrets
from openclaw_rl.serve.inspection import Inspection
from openclaw_rl.serve.signin import limited_to
from openclaw_rl.serve.text import WellFormed
from openclaw_rl.skill import often_corrected, skill_text
from openclaw_rl.types import Json

_Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]


class WishChange(WellFormed):
    model_config = ConfigDict(extra="forbid")

    text: _Words | None = None
    paused: bool | None = None
    noted: bool | None = None


def wish_routes(inspection: Inspection) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/wishes", tags=["read"])
    def wishes(request: Request) -> Json:
        """The newest hundred wishes: your own, or everybody's for the owner."""
        return inspection.wishes(limited_to(request))

    @router.get("/v1/wishes/skill", tags=["read"])
    def skill(request: Request) -> Json:
        """A proposed ``SKILL.md`` for other agents: what you corrected at least twice, with the replies."""
        user: str = request.state.user
        found = often_corrected(inspection.wishes(user)["data"])
        facts = [{name: wish[name] for name in ("id", "text", "times", "turns")} for wish in found]
        return {"text": skill_text(found, user), "wishes": facts}

    @router.patch("/v1/wishes/{wish_id}", tags=["wishes"])
    async def change(wish_id: str, parsed: WishChange, request: Request) -> Json:
        """Rewords or pauses a wish, which undoes what was learned for it, or decides about its note. 409
        if the wish is over."""
        if parsed.text is None and parsed.paused is None and parsed.noted is None:
            raise RequestError("Say what to change: text, paused or noted.", param="text")
        if parsed.text is not None and find_secrets(parsed.text):
            raise RequestError("This looks like a secret; a wish is learned by heart.", param="text")
        user = limited_to(request)
        try:
            known = await asyncio.to_thread(
                partial(inspection.change_wish, wish_id, user, **parsed.model_dump())
            )
        except ValueError as error:
            raise RequestError(f"{error}.", status=409, code="conflict") from None
        if not known:
            raise not_found("wish", wish_id)
        found: list[Json] = (await asyncio.to_thread(inspection.wishes, user))["data"]
        return next((wish for wish in found if wish["id"] == wish_id), {"id": wish_id})

    return router
