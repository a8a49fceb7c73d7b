"""What a key may see: the owner everything, others only their own data.

A version belongs to a scope. A version of another scope is reported as not found.
"""

from __future__ import annotations

from fastapi import Request

from openclaw_rl.errors import RequestError, not_found
from openclaw_rl.scopes import check_scope
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.inspection import Inspection
from openclaw_rl.serve.signin import limited_to
from openclaw_rl.types import BASE_VERSION, Json, Scope


def own_scope(request: Request, gateway: Gateway) -> Scope:
    return gateway.scope_of(request.state.user)


def visible_scope(request: Request, gateway: Gateway, stated: str | None) -> Scope:
    """The given scope, or the user's own; only the owner may see another one."""
    own = own_scope(request, gateway)
    if stated is None:
        return own
    try:
        scope = check_scope(stated)
    except ValueError as error:
        raise RequestError(str(error), param="scope") from None
    if scope != own and limited_to(request) is not None:
        raise RequestError(f"'{scope}' is not yours; leave it out, or use the owner's key.", status=403)
    return scope


def visible_user(request: Request, stated: str | None) -> str | None:
    """Whose conversations a view is limited to: the owner may name anybody, others see their own."""
    own = limited_to(request)
    if stated is None or stated == own:
        return own
    if own is not None:
        raise RequestError(f"You are not '{stated}'; leave user out, or use the owner's key.", status=403)
    return stated


def visible_policy(request: Request, gateway: Gateway, inspection: Inspection, version: int) -> Json:
    found, user = inspection.policy(version, limited_to(request)), limited_to(request)
    if found is None or (user is not None and found["scope"] != own_scope(request, gateway)):
        raise not_found("policy version", version)
    return found


def check_versions(request: Request, gateway: Gateway, inspection: Inspection, versions: list[int]) -> None:
    if limited_to(request) is not None:
        for version in versions:
            if version != BASE_VERSION:
                visible_policy(request, gateway, inspection, version)
