"""Renders messages to tokens and parses tokens into replies, one file per model family.

``create_renderer`` is the entry point. A new family is one file and one line in ``RENDERERS``; a
class outside this package is named by its dotted path.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from openclaw_rl.plugins import find
from openclaw_rl.render.base import TemplateRenderer, collect
from openclaw_rl.render.generic import GenericRenderer
from openclaw_rl.render.llama3 import Llama3Renderer
from openclaw_rl.render.qwen3 import Qwen3Renderer
from openclaw_rl.render.qwen3_5 import Qwen35Renderer
from openclaw_rl.render.smollm2 import SmolLM2Renderer
from openclaw_rl.types import Renderer

__all__ = ["RENDERERS", "TemplateRenderer", "collect", "create_renderer", "guess_family"]

RENDERERS: dict[str, type[Any]] = {
    "smollm2": SmolLM2Renderer,
    "qwen3": Qwen3Renderer,
    "qwen3.5": Qwen35Renderer,
    "llama3": Llama3Renderer,
    "generic": GenericRenderer,
}

#: Used only where the chat template gives no clue.
_MODEL_TYPES = {
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "qwen3_next": "qwen3",
    "qwen3_5": "qwen3.5",
    "qwen3_5_moe": "qwen3.5",
    "qwen3_5_text": "qwen3.5",
}


def create_renderer(
    tokenizer: Any,
    model_type: str | None = None,
    name: str | None = None,
    extra_stop_ids: Iterable[int] = (),
) -> Renderer:
    """The renderer called ``name``, else the one that the chat template (then the model type) suggests.

    ``extra_stop_ids`` are further ids that end a reply, such as those of a generation config.
    """
    cls = find("renderer", name if name is not None else guess_family(tokenizer, model_type), RENDERERS)
    renderer: Renderer = cls(tokenizer, extra_stop_ids=extra_stop_ids)
    return renderer


def guess_family(tokenizer: Any, model_type: str | None = None) -> str:
    """Decided by what the template writes, since the model was trained to continue that."""
    template = _template_text(tokenizer)
    if "<function=" in template:
        return "qwen3.5"
    if "<|start_header_id|>" in template:
        return "llama3"
    if "<|im_start|>" in template:
        return _guess_chatml(template, model_type)
    if not template and "<|start_header_id|>" in tokenizer.get_vocab():
        return "llama3"
    return _MODEL_TYPES.get(model_type or "", "generic")


def _guess_chatml(template: str, model_type: str | None) -> str:
    has_think, has_calls = "<think>" in template, "<tool_call>" in template
    if "SmolLM" in template and not has_think:
        return "smollm2"
    if model_type == "llama" and not has_calls and not has_think:
        return "smollm2"
    if has_think and has_calls and "SmolLM" not in template:
        return "qwen3"
    return _MODEL_TYPES.get(model_type or "", "generic")


def _template_text(tokenizer: Any) -> str:
    template = tokenizer.chat_template
    return "".join(template.values()) if isinstance(template, dict) else template or ""
