"""A connection to the server that runs with a data folder, in the owner's name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from openclaw_rl.config import Config
from openclaw_rl.serve.auth import DEFAULT_USER, KeyRing
from openclaw_rl.serve.listen import announced
from openclaw_rl.text import printable
from openclaw_rl.types import Json


class Server:
    """Answers become JSON; whatever goes wrong is one sentence for a person."""

    def __init__(self, config: Config) -> None:
        url = announced(config.home)
        if url is None:
            raise ValueError(
                f"no server is running with the data folder {config.home}; start one: openclaw-rl serve"
            )
        key = KeyRing.in_home(config.home).key_of(DEFAULT_USER)
        self.url = url
        self._http = httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=30)

    def get(self, path: str, **params: Any) -> Json:
        return self._send("GET", path, params={k: v for k, v in params.items() if v is not None})

    def post(self, path: str, body: Json | None = None) -> Json:
        return self._send("POST", path, json=body)

    def patch(self, path: str, body: Json) -> Json:
        return self._send("PATCH", path, json=body)

    def _send(self, method: str, path: str, **more: Any) -> Json:
        try:
            answer = self._http.request(method, path, **more)
            _check(answer)
            found: Json = printable(answer.json())
            return found
        except httpx.HTTPError as error:
            raise ValueError(f"the server at {self.url} does not answer: {error}") from None

    @contextmanager
    def stream(
        self, path: str, body: Json, headers: dict[str, str] | None = None
    ) -> Iterator[tuple[httpx.Headers, Iterator[Json]]]:
        """The answer's headers, and its events as they come."""
        try:
            with self._http.stream("POST", path, json=body, headers=headers, timeout=300) as answer:
                if answer.is_error:
                    answer.read()
                    _check(answer)
                yield answer.headers, _events(answer)
        except httpx.HTTPError as error:
            raise ValueError(f"the server at {self.url} does not answer: {error}") from None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()


def _check(answer: httpx.Response) -> None:
    if answer.is_error:
        try:
            message = printable(answer.json()["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message = f"the server answered {answer.status_code}"
        raise ValueError(message)


def _events(answer: httpx.Response) -> Iterator[Json]:
    for line in answer.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield printable(json.loads(line.removeprefix("data: ")))
