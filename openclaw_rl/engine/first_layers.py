"""Runs only the first layers of the base, for requests that need no more than a hidden state there.

The judge reads hidden states of a middle layer. The layers after it, and the head, would be wasted.
"""

from __future__ import annotations

from openclaw_rl.engine.model import Network
from openclaw_rl.types import BASE_VERSION, ScoreRequest

#: -1 is the moving average's, where that is the teacher.
_FIRST_TAG = -2


class FirstLayers:
    def __init__(self, base: Network) -> None:
        self._base = base
        self._known: dict[int, Network | None] = {}

    def pick(self, request: ScoreRequest) -> tuple[Network, int] | None:
        """What runs a request, and the version that its caches are tagged with; None if all layers have to.

        Caches of fewer layers must not be continued by anything else, so no real version has such a number.
        """
        layer = request.hidden_layer
        if not request.hidden_only or layer is None or request.policy_version != BASE_VERSION:
            return None
        if layer not in self._known:
            self._known[layer] = self._base.up_to(layer)
        network = self._known[layer]
        return None if network is None else (network, _FIRST_TAG - layer)
