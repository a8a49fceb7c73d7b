"""Fireworks' training service: the Tinker protocol through a client of its own.

Without a URL, its serverless service. A URL names a dedicated trainer, which trains, but does not sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from openclaw_rl.tinker_service import Place, TinkerService

_RELEASED_WITHIN_S = 10.0


def check_name(own: Mapping[str, Any]) -> None:
    """ValueError for options without Fireworks' name of the model, which is not the tokenizer's."""
    if not own.get("base_model"):
        raise ValueError(
            "Fireworks has its own names of models: name one with both --engine-options and "
            "--trainer-options base_model=accounts/fireworks/models/…; --model is where its tokenizer is"
        )


class FireworksService(TinkerService):
    title: ClassVar = "Fireworks"
    key: ClassVar = "FIREWORKS_API_KEY"
    extra: ClassVar = "fireworks"
    scheme: ClassVar = "fireworks"
    package: ClassVar = "fireworks.training.sdk"
    base_error: ClassVar = "TrainingError"
    no_key: ClassVar = "fw-none"

    def _open(self, sdk: Any, key: str, place: Place) -> Any:
        return sdk.FiretitanServiceClient(api_key=key, base_url=place.url or None)

    def check_client(self, version: str, place: Place) -> None:
        """Its versions follow the service's."""

    def offered_models(self, service: Any, place: Place) -> list[str]:
        """None: the serverless service lists no models."""
        return []

    def let_go(self, place: Place, service: Any, model: Any) -> None:
        """Release the model and the session at once: sessions count against a quota."""
        with suppress(Exception):
            if model is not None:
                model.unload_model().result(_RELEASED_WITHIN_S)
        with suppress(Exception):
            service.delete_training_session()
        with suppress(Exception):
            service.close()

    def weights_uri(self, sampler: str, facts: Any) -> str:
        return super().weights_uri(f"{self.scheme}://{sampler}", facts)

    def sampler_of(self, uri: str) -> str:
        return super().sampler_of(uri).removeprefix(f"{self.scheme}://")
