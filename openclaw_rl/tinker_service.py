"""What the engine and the trainer share of the Tinker protocol: connecting, errors, and weight URIs.

Connects to the cloud with a key, or to your own server by URL. The client is an optional dependency, imported
on use. Another service with the same protocol, such as Fireworks, is a subclass.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Protocol
from urllib.parse import quote, unquote

import httpx

from openclaw_rl.errors import EngineAway
from openclaw_rl.types import Json

_QUOTA = (402, 429)
_KEY_REFUSED = (401, 403)
_REQUEST_REFUSED = (400, 404, 422)
#: SkyRL reports a failed connection to its sampler as a refused request, in httpx's words or in none.
_SAMPLER_AWAY = ("", "All connection attempts failed", "Server disconnected without sending a response.")
ANSWERS_WITHIN_S = 30.0
#: The client's first version that a server of one's own cannot serve.
_TOO_NEW = (0, 26)


class Place(Protocol):
    """Where to connect; part of the engine's and the trainer's settings."""

    @property
    def url(self) -> str: ...


class TinkerService:
    """Tinker's client: how to connect, what its errors mean, where its weights are."""

    title: ClassVar = "Tinker"
    """Name in error messages."""
    key: ClassVar = "TINKER_API_KEY"
    extra: ClassVar = "tinker"
    """The optional dependency that brings the client."""
    scheme: ClassVar = "tinker"
    """Of the URIs of its weights; also the name of the trainer that makes them."""
    package: ClassVar = "tinker"
    base_error: ClassVar = "TinkerError"
    no_key: ClassVar = "tml-none"
    """The client requires a key even if your own server does not."""

    @property
    def sdk(self) -> Any:
        """The client's package; ValueError with the remedy if it is missing."""
        # The client sends telemetry by default.
        os.environ.setdefault("TINKER_TELEMETRY", "0")
        try:
            return import_module(self.package)
        except ImportError:
            raise ValueError(
                f"the {self.title} client is missing: pip install 'openclaw-rl[{self.extra}]'"
            ) from None

    def connect(self, place: Place) -> Any:
        """A client of the service; ValueError with the remedy if refused, EngineAway if nothing answers."""
        sdk = self.sdk
        self.check_client(getattr(sdk, "__version__", ""), place)
        key = os.environ.get(self.key) or (self.no_key if place.url else "")
        if not key:
            raise ValueError(
                f"{self.title} wants a key: set {self.key}, or name a server of your own with url=http://…"
            )
        return self._ask(place, lambda: self._open(sdk, key, place))

    def _open(self, sdk: Any, key: str, place: Place) -> Any:
        given: dict[str, Any] = {"base_url": place.url} if place.url else {}
        return sdk.ServiceClient(api_key=key, **given)

    def _ask(self, place: Place, call: Callable[[], Any]) -> Any:
        """The call's result; ValueError with the remedy if it fails, EngineAway if nothing answers."""
        where = place.url or f"the {self.title} service"
        try:
            return within(ANSWERS_WITHIN_S, call, where)
        except self.sdk.APIConnectionError as error:
            raise ValueError(
                f"there is no {self.title} server at {where} ({error}); start it first"
            ) from None
        except Exception as error:
            if (cause := self._clients(error)) is None:
                raise
            raise ValueError(f"{where} cannot be used: {self.problem_of(cause)}") from None

    def check_client(self, version: str, place: Place) -> None:
        """ValueError if this client cannot talk to the server: since 0.26, it cannot read SkyRL's replies."""
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if place.url and numbers >= _TOO_NEW:
            raise ValueError(
                f"the Tinker client {version} cannot read the replies of a SkyRL server; install an earlier "
                "one: pip install 'tinker>=0.25,<0.26'"
            )

    def offered_models(self, service: Any, place: Place) -> list[str]:
        """The server's models; errors as in ``connect``."""
        offered = self._ask(place, service.get_server_capabilities)
        return [str(each.model_name) for each in offered.supported_models]

    def let_go(self, place: Place, service: Any, model: Any) -> None:
        """Close a session and unload its model on your own server, which would otherwise unload it later."""
        with suppress(httpx.HTTPError):
            if place.url and model is not None:
                httpx.post(f"{place.url}/api/v1/unload_model", json={"model_id": model.model_id}, timeout=10)
        service.holder.close()

    # --- errors ------------------------------------------------------------------------------

    def problem_of(self, error: Exception) -> str:
        """One line about the error, without anything that was sent."""
        status = _status(error)
        if status in _QUOTA:
            return f"the quota of the {self.title} service is used up"
        if status in _KEY_REFUSED:
            return f"the {self.title} service refuses the key in {self.key}"
        return f"the {self.title} service failed ({type(error).__name__}{f' {status}' if status else ''})"

    def _clients(self, error: BaseException) -> Exception | None:
        """The client's own exception: it wraps that of its last retry, and 0.25 fails as it handles a 402."""
        kind = getattr(self.sdk, self.base_error)
        for each in (error, error.__cause__, error.__context__):
            if isinstance(each, Exception) and isinstance(each, kind):
                return each
        return None

    def raised(self, error: Exception) -> Exception:
        """The client's exception as ours: unavailable, refused, or failed."""
        error = self._clients(error) or error
        if isinstance(error, self.sdk.RequestFailedError):
            message = str(error).partition("\n")[0]
            return ValueError(message) if str(error.category) == "user" else RuntimeError(message)
        if _status(error) in _REQUEST_REFUSED and (detail := _detail(error)) not in _SAMPLER_AWAY:
            return ValueError(f"the {self.title} service refused the request: {detail}")
        return EngineAway(self.problem_of(error))

    # --- weight URIs -------------------------------------------------------------------------

    def weights_uri(self, sampler: str, facts: Json) -> str:
        """The URI of a version's sampler weights, with what the trainer needs to continue from them."""
        return f"{sampler}#{quote(json.dumps(facts), safe='')}"

    def sampler_of(self, uri: str) -> str:
        if not uri.startswith(f"{self.scheme}://"):
            raise ValueError(
                f"the weights at {uri.partition('#')[0]} were not made by --trainer {self.scheme}"
            )
        return uri.partition("#")[0]

    def facts_of(self, uri: str) -> Json:
        self.sampler_of(uri)
        found: Json = json.loads(unquote(uri.partition("#")[2]) or "{}")
        return found


def within(limit_s: float, call: Callable[[], Any], where: str) -> Any:
    """The call's result. Without a limit the client waits for ever for a server that died as it connected."""
    done: SimpleQueue[Any] = SimpleQueue()

    def run() -> None:
        try:
            done.put((call(), None))
        except Exception as error:
            done.put((None, error))

    threading.Thread(target=run, name="tinker", daemon=True).start()
    try:
        result, error = done.get(timeout=limit_s)
    except Empty:
        raise EngineAway(f"{where} does not answer") from None
    if error is not None:
        raise error
    return result


def _status(error: Any) -> int | None:
    found = getattr(error, "status_code", None) or getattr(
        getattr(error, "response", None), "status_code", None
    )
    return found if isinstance(found, int) else None


def _detail(error: Any) -> str:
    body = getattr(error, "body", None)
    return str(body["detail"]) if isinstance(body, dict) and "detail" in body else str(_status(error))


def find_description(model: str) -> Path:
    """A folder with the model's config and tokenizer; the weights are on the server."""
    if (folder := Path(model).expanduser()).is_dir():
        return folder.resolve()
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "tokenizer*", "*.jinja"]))
    except Exception as error:
        raise ValueError(
            f"could not get the tokenizer of {model} ({type(error).__name__}): check the name and the "
            "network, or name a folder that holds config.json and tokenizer.json"
        ) from None
