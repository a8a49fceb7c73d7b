"""Routes for the owner to manage users: their keys, groups and limits.

They change the same files as ``openclaw-rl users``. A key is shown once, when it is created.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from pydantic import ConfigDict, Field

from openclaw_rl.errors import RequestError, not_found, or_not_found
from openclaw_rl.serve.auth import DEFAULT_USER, FormerUser, KeyRing
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.inspection import Inspection
from openclaw_rl.serve.signin import require_owner
from openclaw_rl.serve.text import WellFormed
from openclaw_rl.types import Json
from openclaw_rl.users import Users

_Limit = Annotated[int, Field(ge=1, le=10**12)]


class NewPerson(WellFormed):
    model_config = ConfigDict(extra="forbid")

    name: str
    same_person: bool = False


class PersonChange(WellFormed):
    """Omitted fields stay unchanged; null removes a group or a limit."""

    model_config = ConfigDict(extra="forbid")

    group: str | None = None
    off_the_record: bool = False
    requests_per_minute: _Limit | None = None
    tokens_per_day: _Limit | None = None


class Decision(WellFormed):
    model_config = ConfigDict(extra="forbid")

    decision: Literal["learn", "discard"]


def people_routes(keys: KeyRing | None, users: Users, gateway: Gateway, inspection: Inspection) -> APIRouter:
    router = APIRouter()

    ring = partial(_ring, keys)

    def view(name: str, num_sessions: dict[str, int]) -> Json:
        about = {"name": name, "scope": gateway.scope_of(name), "num_sessions": num_sessions.get(name, 0)}
        return {**about, **asdict(users.of(name))}

    def known(name: str, ring: KeyRing) -> None:
        if ring.key_of(name) is None:
            raise not_found("user", name)

    @router.get("/v1/users", tags=["people"])
    def list_people(request: Request) -> Json:
        """Everybody who has a key, with ``num_sessions``."""
        names, num_sessions = ring(request).users, inspection.count_sessions()
        return {"object": "list", "data": [view(name, num_sessions) for name in names]}

    @router.post("/v1/users", tags=["people"])
    def add(parsed: NewPerson, request: Request) -> Json:
        """Creates a key and returns it once. A name that was used before needs ``same_person``."""
        try:
            key = ring(request).add(parsed.name, parsed.same_person)
        except FormerUser as error:
            message = f"{error}.".replace("add --same-person", "send same_person")
            raise RequestError(message, param="name", code="former_user") from None
        except ValueError as error:
            raise RequestError(f"{error}.", param="name") from None
        return {**view(parsed.name, inspection.count_sessions()), "key": key}

    @router.patch("/v1/users/{name}", tags=["people"])
    def change(name: str, parsed: PersonChange, request: Request) -> Json:
        """Changes a person's group and limits: omitted fields stay, null removes one."""
        known(name, ring(request))
        if not parsed.model_fields_set:
            fields = ", ".join(PersonChange.model_fields)
            raise RequestError(f"Say what to change: {fields}.", param="group")
        try:
            users.change(name, **parsed.model_dump(exclude_unset=True))
        except ValueError as error:
            raise RequestError(f"{error}.", param="group") from None
        return view(name, inspection.count_sessions())

    @router.delete("/v1/users/{name}/key", tags=["people"])
    def remove_key(name: str, request: Request) -> Json:
        """Removes a person's key; their data stays until it is forgotten."""
        own = ring(request)
        known(name, own)
        if name == DEFAULT_USER:
            raise RequestError("The owner's key stays.", status=409, code="conflict")
        own.remove(name)
        return {"name": name, "removed": True}

    return router


def _ring(keys: KeyRing | None, request: Request) -> KeyRing:
    require_owner(request)
    if keys is None:
        raise RequestError("There are no keys here: start without --no-auth.", status=409, code="conflict")
    keys.reload()
    return keys


def wave_routes(inspection: Inspection) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/waves", tags=["people"])
    def waves(request: Request) -> Json:
        """Sudden waves of complaints about a shared policy; those held wait for a decision."""
        require_owner(request)
        return {"object": "list", "data": inspection.waves()}

    @router.post("/v1/waves/{wave_id}", tags=["people"])
    def decide(wave_id: Annotated[int, Path(ge=1, le=2**31)], parsed: Decision, request: Request) -> Json:
        """Learns from a held wave, or discards it."""
        require_owner(request)
        done = inspection.decide_wave(wave_id, parsed.decision == "learn")
        return or_not_found(done, "held wave", wave_id)

    return router
