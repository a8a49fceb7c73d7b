"""How much of a prompt is no secret between people: the system prompt and the tools it begins with.

Agents send the same ones for everybody, and reading them is most of the work; the rest of a prompt is its
owner's alone.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence

from openclaw_rl.messages import NOTE
from openclaw_rl.types import ChatRequest, Renderer

_REMEMBERED = 64


class PublicPrefix:
    """Rendered once for each system prompt and set of tools. Used from several threads."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._known: OrderedDict[str, list[int]] = OrderedDict()

    def num_tokens(self, request: ChatRequest, prompt_ids: Sequence[int]) -> int:
        # A note of what a person wishes for stands in their system prompt.
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
        except ValueError:  # templates that want a user's message
            ids = []
        self._known[key] = ids
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return ids
