"""One error type per boundary. Each message says what to do about it."""

from __future__ import annotations


class RequestError(Exception):
    """A client's request cannot be answered; the dialect words it in its own format."""

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
