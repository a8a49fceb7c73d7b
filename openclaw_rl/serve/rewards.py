"""Rewards for episodes: the result of a session in an environment, reported by its runner.

Several attempts (sessions) at one task form a group. A group is trained on once all of its sessions have a
reward; each counts relative to the others.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field

from openclaw_rl.errors import RequestError, not_found
from openclaw_rl.scopes import is_environment
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.inspection import Inspection
from openclaw_rl.serve.signin import limited_to
from openclaw_rl.serve.text import WellFormed
from openclaw_rl.types import Json


class Reward(WellFormed):
    """One attempt's reward, or a failure that was not the model's."""

    reward: Annotated[float, Field(ge=-1000, le=1000, allow_inf_nan=False)] | None = None
    failure: Literal["environment", "judge", "server", "time-out"] | None = None
    group: Annotated[str, Field(min_length=1, max_length=200)]
    size: Annotated[int, Field(ge=1, le=1024)]
    """Number of sessions in the group."""


def reward_routes(inspection: Inspection, gateway: Gateway) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/sessions/{session_id:path}/reward", tags=["feedback"])
    async def reward(session_id: str, parsed: Reward, request: Request) -> Json:
        """The outcome of one attempt at a task, in a group of ``size`` attempts."""
        if (parsed.reward is None) == (parsed.failure is None):
            raise RequestError(
                "Give either a reward, or the failure that kept it from being known.", param="reward"
            )
        found = await asyncio.to_thread(
            inspection.session, session_id, limited_to(request), None, None, False
        )
        turns = [turn for turn in found["turns"] if turn["kind"] != "side"] if found else []
        if found is None or not turns:
            raise not_found("session", session_id)
        scope = gateway.scope_of(found["user"])
        if not is_environment(scope):
            raise RequestError(
                "Rewards are for agents in an environment, and this session is of a person's key. Give the "
                f"agent a key of its own: openclaw-rl users environment {found['user']} NAME",
                status=409,
                code="not_an_environment",
            )
        said = {"reward": parsed.reward, "failure": parsed.failure or "", "scope": scope}
        await inspection.record_event(
            turns[-1]["id"], "reward", {**said, "group": parsed.group, "size": parsed.size}
        )
        return {"id": session_id, "reward": parsed.reward, "group": parsed.group, "turns": len(turns)}

    return router


def environment_routes(inspection: Inspection, gateway: Gateway) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/environments", tags=["read"])
    def environments(request: Request) -> Json:
        """Success rates by version and causes of failure, per environment."""
        own = None if limited_to(request) is None else gateway.scope_of(request.state.user)
        return {"data": inspection.environments(own)}

    @router.get("/v1/environments/{name}/attempts", tags=["read"])
    def attempts(
        name: str,
        request: Request,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        before: Annotated[float | None, Query(allow_inf_nan=False)] = None,
    ) -> Json:
        """The newest attempts."""
        scope = f"env:{name}"
        if limited_to(request) is not None and scope != gateway.scope_of(request.state.user):
            raise not_found("environment", name)
        return {"data": inspection.attempts(scope, limit, before)}

    @router.get("/v1/environments/{name}/attempts/{session_id}", tags=["read"])
    def replay(name: str, session_id: str, request: Request) -> Json:
        """One attempt of ``openclaw-rl train``, step by step."""
        found = inspection.replay(name, session_id, limited_to(request))
        if found is None:
            raise RequestError(
                f"There is no replay of '{session_id}': those of the newest episodes are kept.",
                status=404,
                code="not_found",
            )
        return found

    return router
