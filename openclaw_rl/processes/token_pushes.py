"""What a step learned from one turn, for the dashboard's view of it: how it pushed the reply's own tokens, or
which other answers it was taught."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from openclaw_rl.secret_scan import mask
from openclaw_rl.types import NO_SIGNAL, Example, Json, Renderer

_MARK = "#"


def taught_answers(examples: Sequence[Example], renderer: Renderer) -> list[Json]:
    """The teacher's answers that were learned instead of a reply, and what they answer."""
    around = _decode(renderer, renderer.render([{"role": "user", "content": _MARK}])).rsplit(_MARK, 1)
    return [
        {
            "asked": mask(_decode(renderer, one.prompt_ids).removeprefix(around[0]).removesuffix(around[1])),
            "answer": mask(_decode(renderer, [i for i in one.reply_ids if i not in renderer.stop_ids])),
        }
        for one in examples
        if one.source.kind == "hinted"
    ]


def _decode(renderer: Renderer, ids: Sequence[int]) -> str:
    detokenizer = renderer.detokenizer()
    return "".join(map(detokenizer.feed, ids)) + detokenizer.finish()


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
