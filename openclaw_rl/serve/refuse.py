"""Errors in the format of the request's dialect; each says what to do about it."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from openclaw_rl.errors import GrammarFailed, RequestError, where
from openclaw_rl.serve.dialects import dialect_of
from openclaw_rl.serve.metrics import Metrics

log = logging.getLogger(__name__)
FAILED = "The server failed while answering; its log says why. Try again."


def refusal(path: str, error: RequestError) -> JSONResponse:
    body = dialect_of(path).error(error.status, error.message, error.code, error.param)
    headers = {"retry-after": str(error.retry_after_s)} if error.retry_after_s is not None else None
    return JSONResponse(body, status_code=error.status, headers=headers)


def add_errors(app: FastAPI, metrics: Metrics) -> None:
    async def refused(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestError)
        metrics.requests.labels(_route(request), str(error.status)).inc()
        return refusal(request.url.path, error)

    async def unfollowed(request: Request, error: Exception) -> JSONResponse:
        metrics.requests.labels(_route(request), "400").inc()
        problem = f"This schema cannot be used: {error}"
        return refusal(
            request.url.path, RequestError(problem, code="invalid_schema", param="response_format")
        )

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        metrics.requests.labels(_route(request), "400").inc()
        return refusal(request.url.path, _problem(error))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        path, detail = request.url.path, error.detail
        if error.status_code == 404 and any(getattr(r, "path", "") == f"/v1{path}" for r in app.routes):
            detail, path = (
                f"not found; end the client's base URL with /v1: {request.base_url}v1",
                f"/v1{path}",
            )
        message = f"{request.method} {request.url.path}: {detail}"
        code = "not_found" if error.status_code == 404 else None
        response = refusal(path, RequestError(message, status=error.status_code, code=code))
        response.headers.update(error.headers or {})
        return response

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        log.error("request to %s failed: %s", _route(request), where(error))
        return refusal(request.url.path, RequestError(FAILED, status=500))

    app.add_exception_handler(RequestError, refused)
    app.add_exception_handler(GrammarFailed, unfollowed)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unexpected)


def _problem(error: RequestValidationError) -> RequestError:
    """The deepest error: if a value may have several types, that one is about the type that was meant."""
    first = max(error.errors(), key=lambda problem: len(problem["loc"]))
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query"))
    if first["type"] == "json_invalid":
        return RequestError(f"The body is not valid JSON: {first.get('ctx', {}).get('error', '')}")
    if not where and first["type"] == "model_attributes_type":
        return RequestError(
            "The body is no JSON object; send one, with the header Content-Type: application/json."
        )
    return RequestError(f"{where or 'body'}: {first['msg']}", code="invalid_value", param=where or None)


def _route(request: Request) -> str:
    """The route's pattern, not the path: clients must not be able to invent labels."""
    return str(getattr(request.scope.get("route"), "path_format", "unknown"))
