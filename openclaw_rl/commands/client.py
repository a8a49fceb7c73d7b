"""A client of the server of a data folder, with the owner's key."""

from __future__ import annotations

import argparse
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


class ServerClient:
    """Returns JSON; every failure is a ValueError with one sentence for the user."""

    def __init__(self, config: Config, url: str | None = None, key: str | None = None) -> None:
        """``url`` and ``key`` select another server; the default is the data folder's."""
        found = url or announced(config.home)
        if found is None:
            raise ValueError(
                f"no server is running with the data folder {config.home}; start one with "
                "'openclaw-rl start'; if one runs elsewhere, name its data folder with --home FOLDER, or its "
                "address with --url http://HOST:30000"
            )
        self.url = _base_url(found)
        key = key or KeyRing.in_home(config.people, create=False).key_of(DEFAULT_USER)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=30)

    @classmethod
    def chosen(cls, options: argparse.Namespace, config: Config) -> ServerClient:
        return cls(config, options.url, options.key)

    def get(self, path: str, **params: Any) -> Json:
        return self._send("GET", path, params={k: v for k, v in params.items() if v is not None})

    def post(self, path: str, body: Json | None = None) -> Json:
        return self._send("POST", path, json=body)

    def patch(self, path: str, body: Json) -> Json:
        return self._send("PATCH", path, json=body)

    def delete(self, path: str) -> Json:
        return self._send("DELETE", path)

    def _send(self, method: str, path: str, **more: Any) -> Json:
        try:
            answer = self._http.request(method, path, **more)
        except httpx.HTTPError as error:
            raise ValueError(f"the server at {self.url} does not answer: {error}") from None
        _check(answer)
        try:
            found: Json = printable(answer.json())
        except ValueError:
            raise ValueError(f"what answers at {self.url} is no server of openclaw-rl") from None
        return found

    @contextmanager
    def stream(
        self, path: str, body: Json, headers: dict[str, str] | None = None
    ) -> Iterator[tuple[httpx.Headers, Iterator[Json]]]:
        """The response's headers, and its events as they arrive."""
        try:
            with self._http.stream("POST", path, json=body, headers=headers, timeout=300) as answer:
                if answer.is_error:
                    answer.read()
                    _check(answer)
                yield answer.headers, _events(answer)
        except httpx.HTTPError as error:
            raise ValueError(f"the server at {self.url} does not answer: {error}") from None

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()


def _base_url(text: str) -> str:
    """Accepts URLs with or without a scheme and /v1."""
    url = text if "://" in text else f"http://{text}"
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"--url is {text!r}; it must be an address such as http://gpu-box:30000")
    return url.rstrip("/").removesuffix("/v1")


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
