"""One error type per boundary. Each message says what to do about it."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


class RequestError(Exception):
    """A client's request cannot be answered; the dialect writes the error in its own format."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.code, self.param = message, status, code, param
        self.retry_after_s = retry_after_s


def not_found(kind: str, name: object) -> RequestError:
    return RequestError(f"There is no {kind} '{name}'.", status=404, code="not_found")


def or_not_found(value: T | None, kind: str, name: object) -> T:
    """The value; a 404 if it is None."""
    if value is None:
        raise not_found(kind, name)
    return value


class EngineAway(RequestError, ConnectionError):
    """The model's server stayed unreachable for the whole waiting time; learning keeps waiting."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"The model cannot answer now: {problem}. Try again in a moment.",
            status=503,
            code="engine_unavailable",
            retry_after_s=5,
        )


class GrammarFailed(ValueError):
    """A reply could not follow its grammar to the end: the schema's fault. The message contains neither."""

    def __init__(self) -> None:
        super().__init__("the grammar cannot be followed to its end; make the schema simpler")


def written_by_newer(file: object, detail: str) -> ValueError:
    """For data that a later version left, and this one would misread."""
    return ValueError(
        f"{file} was written by a newer version of openclaw-rl ({detail}): upgrade openclaw-rl, or restore a "
        "backup that was made before, with 'openclaw-rl restore FILE.tar.gz --home NEW_FOLDER'"
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` if a known name is close, otherwise empty; to append to a message."""
    close = get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def where(error: BaseException) -> str:
    """The error's type and location for a log, without its message, which may contain a user's text."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames[-12:]]
    return "\n".join([type(error).__name__, *lines])
