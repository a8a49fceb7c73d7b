"""The Trainer protocol."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from openclaw_rl.types import BASE_VERSION, Batch, Example, Source, Trainer, Weights


def example(number: int, columns: int = 1, signal: float = 1.0) -> Example:
    """A short reply with the given signal and number of candidates per token."""
    rng = np.random.default_rng(number)
    ids = rng.integers(3, 60, (5, columns)).astype(np.int32)
    return Example(
        prompt_ids=rng.integers(3, 60, 7).tolist(),
        reply_ids=ids[:, 0].tolist(),
        ids_NK=ids,
        old_NK=np.full((5, columns), -3.0, np.float32),
        signal_NK=np.full((5, columns), signal, np.float32),
        source=Source("own", (f"t{number}",), "ann", 1, policy_version=BASE_VERSION),
        num_free=5,
    )


class TrainerContract:
    """Fixture: ``make_trainer``, which creates a trainer at the base on each call."""

    def test_a_step_is_reported(self, make_trainer: Callable[[], Trainer]) -> None:
        trainer = make_trainer()
        trainer.resume(None)
        report = trainer.step(Batch([example(1), example(2, columns=3)]), BASE_VERSION)
        assert report.finite
        assert report.num_samples == 2
        assert report.num_reply_tokens == 10
        assert report.learning_rate > 0

    def test_every_loss_it_claims_works(self, make_trainer: Callable[[], Trainer]) -> None:
        trainer = make_trainer()
        assert "clipped-surrogate" in trainer.capabilities.losses
        for loss in sorted(trainer.capabilities.losses):
            trainer.resume(None)
            signal = 1.0 if loss == "clipped-surrogate" else -2.0  # an advantage, or a teacher's log-prob
            assert trainer.step(Batch([example(1, 2, signal)], loss), BASE_VERSION).finite, loss

    def test_what_it_does_not_claim_is_refused(self, make_trainer: Callable[[], Trainer]) -> None:
        trainer = make_trainer()
        with pytest.raises(ValueError, match="no-such-loss"):
            trainer.step(Batch([example(1)], "no-such-loss"), BASE_VERSION)

        def mine(new_NK: Any, old_NK: Any, signal_NK: Any) -> Any:
            return -(signal_NK * new_NK).sum(1)

        if trainer.capabilities.custom_losses:
            assert trainer.step(Batch([example(1)], mine), BASE_VERSION).finite
        else:
            with pytest.raises(ValueError):
                trainer.step(Batch([example(1)], mine), BASE_VERSION)

    def test_it_goes_on_from_what_it_saved(self, make_trainer: Callable[[], Trainer], tmp_path: Path) -> None:
        first = make_trainer()
        first.resume(None)
        first.step(Batch([example(1)]), BASE_VERSION)
        folder = tmp_path / "1"
        folder.mkdir()
        uri = first.save(folder, {"seen": 1})
        saved = Weights(1, uri) if uri else Weights.in_folder(1, folder)
        assert urlsplit(saved.uri).scheme == first.capabilities.makes
        through = first.step(Batch([example(2)]), 1)
        second = make_trainer()
        second.resume(saved)
        assert second.state == {"seen": 1}
        assert second.step(Batch([example(2)]), 1).loss == pytest.approx(through.loss, abs=1e-4)

    def test_the_base_can_be_gone_back_to(self, make_trainer: Callable[[], Trainer]) -> None:
        trainer = make_trainer()
        losses = []
        for _ in range(2):
            trainer.resume(None)
            losses.append(trainer.step(Batch([example(1), example(2)]), BASE_VERSION).loss)
        assert losses[0] == pytest.approx(losses[1], abs=1e-5)
