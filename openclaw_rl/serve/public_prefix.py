"""How much of a prompt may be shared between users: the system prompt and tools at its start.

Agents send the same ones for every user, and prefilling them is most of the work. The rest of a prompt is
private to its owner.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence

from openclaw_rl.messages import NOTE
from openclaw_rl.types import ChatRequest, Renderer

_REMEMBERED = 64


class PublicPrefix:
    """Renders each system prompt and set of tools once. Used from several threads."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._known: OrderedDict[str, list[int]] = OrderedDict()

    def num_tokens(self, request: ChatRequest, prompt_ids: Sequence[int]) -> int:
        # A user's note is private, and it is part of the system prompt.
        if request.prompt is not None or NOTE in request.body:
            return 0
        number = 0
        for ours, theirs in zip(self._ids(request), prompt_ids, strict=False):
            if ours != theirs:
                break
            number += 1
        return number

    def _ids(self, request: ChatRequest) -> list[int]:
        system = []
        for message in request.messages:
            if message["role"] not in ("system", "developer"):
                break
            system.append(message)
        if not system:
            return []
        key = json.dumps([system, request.tools, request.thinking], default=str)
        if (known := self._known.get(key)) is not None:
            return known
        try:
            ids = self._renderer.render(system, request.tools, thinking=request.thinking)
        except ValueError:  # templates that require a user message
            ids = []
        self._known[key] = ids
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return ids
