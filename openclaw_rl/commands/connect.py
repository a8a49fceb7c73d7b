"""``openclaw-rl connect``: point a client at this server."""

from __future__ import annotations

import argparse
from typing import Any

import httpx

from openclaw_rl import connect
from openclaw_rl.config import Config
from openclaw_rl.connect.client import ROOMY, ServerAddress
from openclaw_rl.models import short_name
from openclaw_rl.serve.auth import DEFAULT_USER, KeyRing
from openclaw_rl.serve.listen import announced
from openclaw_rl.users import Users

#: The setting with which turns that say ``store: false`` are kept and learned from.
_KEPT = "not-retrievable"


def run(options: argparse.Namespace, config: Config) -> int:
    server = server_of(config, options.user, options.context)
    connect.run(options.client, server, print, write=options.write, undo=options.undo)
    return 0


def server_of(config: Config, user: str = DEFAULT_USER, context: int | None = None) -> ServerAddress:
    """Where the server is or will be, with somebody's key; what it serves is exact once it runs."""
    key = KeyRing.in_home(config.people).key_of(user)
    if key is None:
        raise ValueError(f"user {user!r} has no key; make one: openclaw-rl keys add {user}")
    name = config.serve.served_model_name or short_name(config.engine.model)
    url = announced(config.home) or f"http://{config.serve.host}:{config.serve.port}"
    known = {"model": name, "max_tokens": config.serve.default_max_tokens, **_served(url, key)}
    known.setdefault("keeps_store_false", config.serve.store_false == _KEPT)
    known["off_the_record"] = Users.in_home(config.people).of(user).off_the_record
    if context:
        known["context_length"] = context
    return ServerAddress(url, key, **known)


def _served(url: str, key: str) -> dict[str, Any]:
    """What a running server reports to serve; empty if none answers, or only another program does."""
    headers = {"authorization": f"Bearer {key}"}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=5) as client:
            status = client.get("/v1/status").raise_for_status().json()
            length, kept = status["engine"]["context_length"], status.get("store_false", _KEPT) == _KEPT
            if length:
                return {"model": status["model"], "context_length": length, "keeps_store_false": kept}
            # The model is on another server, and its context length is unknown.
            names = [model["id"] for model in client.get("/v1/models").raise_for_status().json()["data"]]
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return {}
    model = status["model"] if status["model"] in names or not names else names[0]
    return {
        "model": model,
        "context_length": ROOMY,
        "max_tokens": ROOMY // 4,
        "keeps_store_false": kept,
    }
