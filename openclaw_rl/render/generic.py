"""Any other template: Hermes-style ``<tool_call>`` JSON, and ``<think>`` where the model knows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from openclaw_rl.render.base import TemplateRenderer
from openclaw_rl.render.stream import THINK


class GenericRenderer(TemplateRenderer):
    turn_ends = (
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<end_of_turn>",
        "<|end|>",
        "</s>",
    )

    def __init__(self, tokenizer: Any, extra_stop_ids: Iterable[int] = ()) -> None:
        super().__init__(tokenizer, extra_stop_ids)
        self.reasons = THINK in self._template or THINK in tokenizer.get_vocab()
