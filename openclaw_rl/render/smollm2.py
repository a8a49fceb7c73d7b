"""SmolLM2: ChatML, all calls of a reply in one tag as a list, no reasoning.

Its template does not support tools, so they are described in the system message.
"""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.render.base import TemplateRenderer, call_json
from openclaw_rl.types import ToolCall


class SmolLM2Renderer(TemplateRenderer):
    call_frame = ("<tool_call>[", "]</tool_call>", "arguments")

    def calls_text(self, calls: Sequence[ToolCall]) -> str:
        return f"<tool_call>[{', '.join(call_json(call) for call in calls)}]</tool_call>"
