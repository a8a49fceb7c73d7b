"""How a step pushed the tokens of one reply, for the dashboard's view of a turn."""

from __future__ import annotations

from collections.abc import Callable

from openclaw_rl.types import NO_SIGNAL, Example, Json


def push_of(sample: Example | None, index: int, factor: float, text: Callable[[int], str]) -> Json:
    """The advantages of the sampled token and of the other candidates, as the step used them."""
    if sample is None or index >= len(sample.ids_NK):
        return {"advantage": None, "candidates": []}
    ids, signal = sample.ids_NK[index].tolist(), sample.signal_NK[index].tolist()
    old = sample.old_NK[index].tolist()
    if _is_distilled(sample):
        # Distillation stores the teacher's log-probs; the advantage is their difference to the old ones.
        signal = [0.0 if s == NO_SIGNAL else s - o for s, o in zip(signal, old, strict=True)]
    pushes: dict[int, float] = {}
    for token_id, value in zip(ids, signal, strict=True):
        pushes[token_id] = pushes.get(token_id, 0.0) + value * factor
    others = [
        {
            "text": text(i),
            "advantage": value,
            "logprob": old[ids.index(i)] if old[ids.index(i)] <= 0 else None,
        }
        for i, value in pushes.items()
        if i != ids[0] and value
    ]
    return {"advantage": pushes[ids[0]], "candidates": others}


def _is_distilled(sample: Example) -> bool:
    """Whether the signal consists of the teacher's log-probs (never positive) and ``NO_SIGNAL``."""
    none = sample.signal_NK == NO_SIGNAL
    return sample.source.hint is not None and bool(none.any() and (none | (sample.signal_NK <= 0)).all())
