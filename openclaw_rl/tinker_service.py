"""What the engine and the trainer share of the Tinker protocol: connecting, errors, and weight URIs.

Connects to the cloud with a key, or to your own server by URL. The client is an optional dependency, imported
on use.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol
from urllib.parse import quote, unquote

import httpx

from openclaw_rl.errors import EngineAway
from openclaw_rl.types import Json

KEY = "TINKER_API_KEY"
#: The client requires a key even if the server does not.
_NO_KEY = "tml-none"
_QUOTA = (402, 429)
_ANSWERS_WITHIN_S = 30.0
#: The client's first version that a server of one's own cannot serve.
_TOO_NEW = (0, 26)


class Place(Protocol):
    """Where to connect; part of the engine's and the trainer's settings."""

    @property
    def url(self) -> str: ...


def connect(place: Place) -> Any:
    """A client of the service; ValueError with the remedy if that fails."""
    try:
        # The client sends telemetry by default.
        os.environ.setdefault("TINKER_TELEMETRY", "0")
        import tinker
    except ImportError:
        raise ValueError("the Tinker client is missing: pip install 'openclaw-rl[tinker]'") from None
    check_client(tinker.__version__, place)
    key = os.environ.get(KEY) or (_NO_KEY if place.url else "")
    if not key:
        raise ValueError(f"Tinker wants a key: set {KEY}, or name a server of your own with url=http://…")
    given: dict[str, Any] = {"base_url": place.url} if place.url else {}
    try:
        return tinker.ServiceClient(api_key=key, **given)
    except tinker.TinkerError as error:
        raise ValueError(f"Tinker cannot be used: {error}") from None


def check_client(version: str, place: Place) -> None:
    """ValueError if this client cannot talk to the server: since 0.26, SkyRL's replies fail to be read."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if place.url and numbers >= _TOO_NEW:
        raise ValueError(
            f"the Tinker client {version} cannot read the replies of a SkyRL server; install an earlier one: "
            "pip install 'tinker>=0.25,<0.26'"
        )


def offered_models(service: Any, place: Place) -> list[str]:
    """The server's models; ValueError with the remedy if the request fails, EngineAway if nothing answers."""
    import tinker

    where = place.url or "the Tinker service"
    try:
        offered = _within(_ANSWERS_WITHIN_S, service.get_server_capabilities, where)
        return [str(each.model_name) for each in offered.supported_models]
    except tinker.AuthenticationError:
        raise ValueError(f"{where} refuses the key in {KEY}") from None
    except tinker.APIConnectionError as error:
        raise ValueError(f"there is no Tinker server at {where} ({error}); start it first") from None
    except Exception as error:
        if (cause := _clients(error)) is None:
            raise
        raise ValueError(f"{where} cannot be used: {problem_of(cause)}") from None


def _within(limit_s: float, call: Callable[[], Any], where: str) -> Any:
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


def let_go(place: Place, service: Any, model: Any) -> None:
    """Close a session and unload its model on your own server, which would otherwise unload it only later."""
    with suppress(httpx.HTTPError):
        if place.url and model is not None:
            httpx.post(f"{place.url}/api/v1/unload_model", json={"model_id": model.model_id}, timeout=10)
    service.holder.close()


def problem_of(error: Exception) -> str:
    """One line about the error, without anything that was sent."""
    status = getattr(error, "status_code", None)
    if status in _QUOTA:
        return "the quota of the Tinker service is used up"
    if status in (401, 403):
        return f"the Tinker service refuses the key in {KEY}"
    return f"the Tinker service failed ({type(error).__name__}{f' {status}' if status else ''})"


def _clients(error: BaseException) -> Exception | None:
    """The client's own exception. It wraps that of its last retry, and 0.25 fails while it handles a 402."""
    import tinker

    for each in (error, error.__cause__, error.__context__):
        if isinstance(each, Exception) and isinstance(each, tinker.TinkerError):
            return each
    return None


def raised(error: Exception) -> Exception:
    """The client's exception as ours: unavailable, refused, or failed."""
    import tinker

    error = _clients(error) or error
    if isinstance(error, tinker.RequestFailedError):
        message = str(error).partition("\n")[0]
        return ValueError(message) if str(error.category) == "user" else RuntimeError(message)
    if isinstance(error, tinker.BadRequestError | tinker.NotFoundError | tinker.UnprocessableEntityError):
        return ValueError(f"the Tinker service refused the request: {_detail(error)}")
    return EngineAway(problem_of(error))


def _detail(error: Any) -> str:
    body = getattr(error, "body", None)
    return str(body["detail"]) if isinstance(body, dict) and "detail" in body else str(error.status_code)


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


# --- weight URIs -----------------------------------------------------------------------------


def weights_uri(sampler: str, facts: Json) -> str:
    """The URI of a version's sampler weights, with what the trainer needs to continue from them."""
    return f"{sampler}#{quote(json.dumps(facts), safe='')}"


def sampler_of(uri: str) -> str:
    if not uri.startswith("tinker://"):
        raise ValueError(f"the weights at {uri.partition('#')[0]} were not made by --trainer tinker")
    return uri.partition("#")[0]


def facts_of(uri: str) -> Json:
    sampler_of(uri)
    found: Json = json.loads(unquote(uri.partition("#")[2]) or "{}")
    return found
