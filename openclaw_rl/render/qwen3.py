"""Qwen3: ChatML, ``<think>`` reasoning, one JSON object per ``<tool_call>`` tag."""

from __future__ import annotations

from openclaw_rl.render.base import TemplateRenderer


class Qwen3Renderer(TemplateRenderer):
    reasons = True
