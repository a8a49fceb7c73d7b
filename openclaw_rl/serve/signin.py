"""Authentication: an API key with every request, or a browser session that was opened with one.

A browser signs in with an API key and gets a cookie that scripts cannot read and other sites cannot
send. The cookie is signed with the user's own key, so only signed-out sessions are stored, and removing the
key ends all of them. Requests that change something also need a header that pages of other origins cannot
make a browser send.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.attempts import Attempts
from openclaw_rl.serve.auth import DEFAULT_USER, KeyRing
from openclaw_rl.serve.refuse import refusal
from openclaw_rl.serve.signed_out import SignedOut
from openclaw_rl.serve.text import WellFormed
from openclaw_rl.types import Json

OPEN_PATHS = ("/healthz", "/readyz", "/", "/v1/login", "/favicon.ico")
OPEN_FOLDER = "/web/"
#: Needs no authentication, so that a page can check whether it must sign in without causing an error.
WHO_AM_I = "/v1/me"
GUARD, GUARD_VALUE = "x-requested-with", "openclaw-rl"
_SESSION_S = 7 * 86400
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class Authentication:
    """Determines the user of every request before its body is read.

    Health checks and the dashboard's files are open. With ``keys`` None, everyone is the default user.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing | None,
        signed_out: SignedOut | None,
        attempts: Attempts,
        hosts: Collection[str],
    ) -> None:
        """``hosts``: host names that requests may use if there are no keys."""
        self._app, self._keys, self._signed_out = app, keys, signed_out
        self._attempts, self._hosts = attempts, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        is_open = path in OPEN_PATHS or path.startswith(OPEN_FOLDER)
        if scope["type"] == "http" and not is_open:
            try:
                scope.setdefault("state", {})["user"] = self._user(scope, Headers(scope=scope))
            except RequestError as error:
                if path == WHO_AM_I and error.status == 401:
                    scope.setdefault("state", {})["user"] = None
                    await self._app(scope, receive, send)
                    return
                await refusal(path, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _user(self, scope: Scope, headers: Headers) -> str:
        if self._keys is None:
            check_host(headers, self._hosts)
            if scope["method"] not in _SAFE_METHODS and _is_foreign(headers):
                raise _foreign()
            return DEFAULT_USER
        scheme, _, token = headers.get("authorization", "").partition(" ")
        stated = (token.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", ""))
        if any(stated):
            # Some clients send another service's old token besides our key.
            for key in filter(None, stated):
                if user := try_key(self._keys, key, scope, self._attempts):
                    return user
            raise _unauthorised(
                "This API key is not known here. 'openclaw-rl keys list' shows those that are."
            )
        if user := self._signed_in(scope, headers):
            if scope["method"] not in _SAFE_METHODS:
                check_same_site(headers)
            return user
        raise _unauthorised(
            "No API key. Send 'Authorization: Bearer KEY' or 'x-api-key: KEY'; "
            "'openclaw-rl keys list' shows it."
        )

    def _signed_in(self, scope: Scope, headers: Headers) -> str | None:
        assert self._keys is not None
        session = _session_of(scope, headers, self._keys)
        if session is None or (self._signed_out is not None and session.id in self._signed_out):
            return None
        return session.user


def try_key(keys: KeyRing, key: str, scope: Scope, attempts: Attempts) -> str | None:
    """The key's user, or None; RequestError after too many wrong keys from the same address."""
    address = (scope.get("client") or ("", 0))[0]
    if wait_s := attempts.wait_s(address, key):
        raise RequestError(
            "Too many keys that are not known here came from this address; try again later.",
            status=429,
            code="rate_limit_exceeded",
            retry_after_s=wait_s,
        )
    user = keys.user_of(key)
    if user is None:
        attempts.failed(address)
    else:
        attempts.passed(key)
    return user


def check_host(headers: Headers, hosts: Collection[str]) -> None:
    """Against DNS rebinding: a page could point its own name at this machine, so names must be known."""
    host = headers.get("host", "").strip().lower()
    name = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.rpartition(":")[0] or host
    with suppress(ValueError):
        ip_address(name)
        return
    if name not in ("", "localhost", *hosts):
        raise RequestError(
            f"Without keys, this server does not answer under the name '{name}'; use its address, or start "
            f"it with --allowed-hosts {name}.",
            status=403,
            code="forbidden",
        )


def check_same_site(headers: Headers) -> None:
    """Browsers let only our own pages add this header; the origin is checked as well."""
    if _is_foreign(headers) or headers.get(GUARD) != GUARD_VALUE:
        raise _foreign()


def _is_foreign(headers: Headers) -> bool:
    """Whether the request comes from a page of another origin; scripts send no origin."""
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host", "")


def _foreign() -> RequestError:
    return RequestError(
        f"A browser has to send '{GUARD}: {GUARD_VALUE}' from this address; scripts use a key.",
        status=403,
        code="forbidden",
    )


def cookie_name(scope: Scope) -> str:
    """Browsers share cookies among the ports of a host, so the name includes the port."""
    server = scope.get("server") or ("", 0)
    return f"openclaw_rl_{server[1]}"


@dataclass(frozen=True, slots=True)
class Session:
    """The content of a cookie with a valid signature."""

    user: str
    id: str


def make_session(user: str, key: str, now: float | None = None) -> str:
    expires = int((time.time() if now is None else now) + _SESSION_S)
    session_id = secrets.token_hex(16)
    return f"{user}~{expires}~{session_id}~{_sign(user, expires, session_id, key)}"


def read_session(value: str, keys: KeyRing) -> Session | None:
    user, expires, session_id, signature = (value.split("~") + [""] * 4)[:4]
    keys.reload()
    key = keys.key_of(user)
    if key is None or not expires.isascii() or not expires.isdigit() or len(expires) > 12:
        return None
    if not hmac.compare_digest(_sign(user, int(expires), session_id, key).encode(), signature.encode()):
        return None
    return Session(user, session_id) if int(expires) > time.time() else None


def _session_of(scope: Scope, headers: Headers, keys: KeyRing) -> Session | None:
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return None
    found = cookies.get(cookie_name(scope))
    return None if found is None else read_session(found.value, keys)


def _sign(user: str, expires: int, session_id: str, key: str) -> str:
    return hmac.digest(key.encode(), f"session {user} {expires} {session_id}".encode(), "sha256").hex()


class Login(WellFormed):
    key: str = Field(max_length=1000)


def add_signin(app: FastAPI, keys: KeyRing | None, hosts: Collection[str] = ()) -> None:
    """Authenticate every request, and add the routes to sign in and out."""
    attempts = Attempts()
    signed_out = None if keys is None else SignedOut(keys.path.with_name("signed_out.txt"))
    app.add_middleware(Authentication, keys=keys, signed_out=signed_out, attempts=attempts, hosts=hosts)

    @app.post("/v1/login", tags=["sign-in"])
    async def login(parsed: Login, request: Request) -> Response:
        """Signs a browser in with a cookie."""
        check_same_site(request.headers)
        if keys is None:
            check_host(request.headers, hosts)
        shown = parsed.key.strip()
        user = DEFAULT_USER if keys is None else try_key(keys, shown, request.scope, attempts)
        if user is None:
            raise _unauthorised(
                "This API key is not known here. 'openclaw-rl keys list' shows those that are."
            )
        answer = JSONResponse(_me(user, keys))
        key = None if keys is None else keys.key_of(user)
        if key is not None:
            answer.set_cookie(
                cookie_name(request.scope),
                make_session(user, key),
                max_age=_SESSION_S,
                httponly=True,
                samesite="strict",
                secure=request.url.scheme == "https",
            )
        return answer

    @app.post("/v1/logout", tags=["sign-in"])
    async def logout(request: Request) -> Response:
        """Ends this sign-in."""
        if keys is not None and signed_out is not None:
            session = _session_of(request.scope, request.headers, keys)
            if session is not None:
                signed_out.add(session.id)
        answer = JSONResponse({"status": "ok"})
        answer.delete_cookie(cookie_name(request.scope), httponly=True, samesite="strict")
        return answer

    @app.get(WHO_AM_I, tags=["sign-in"])
    async def me(request: Request) -> Json:
        """Who is signed in."""
        return _me(request.state.user, keys)


def _me(user: str | None, keys: KeyRing | None) -> Json:
    return {"user": user, "owner": user == DEFAULT_USER, "keys": keys is not None}


def limited_to(request: Request) -> str | None:
    """The user whose data a request may see; None for the owner, who sees everything."""
    user: str = request.state.user
    return None if user == DEFAULT_USER else user


def require_owner(request: Request) -> None:
    if limited_to(request) is not None:
        raise RequestError("Only the owner's key may do this.", status=403, code="forbidden")


def _unauthorised(message: str) -> RequestError:
    return RequestError(message, status=401, code="invalid_api_key")
