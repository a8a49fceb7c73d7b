"""Llama 3: header tokens, and a tool call that is a bare JSON object at the start of the reply.

Several calls are separated by ``;`` or white space. A JSON object without a name and parameters
is content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from openclaw_rl.render.base import TemplateRenderer, call_json
from openclaw_rl.render.calls import CallScanner, JsonCalls, Reader, skip_space
from openclaw_rl.render.stream import StreamParser
from openclaw_rl.types import ReplyParser, Tool, ToolCall

PYTHON_TAG = "<|python_tag|>"

#: For Llama 3 vocabularies that come without a template.
LLAMA3_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


class Llama3Renderer(TemplateRenderer):
    turn_ends = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
    call_frame = ("", "", "parameters")

    def calls_text(self, calls: Sequence[ToolCall]) -> str:
        return "; ".join(call_json(call, "parameters") for call in calls)

    def parser(self, prompt_ids: Sequence[int], tools: Sequence[Tool] = ()) -> ReplyParser:
        return BareCallParser() if tools else StreamParser(False, False, None)

    def fallback_template(self) -> str:
        has_headers = "<|start_header_id|>" in self.tokenizer.get_vocab()
        return LLAMA3_TEMPLATE if has_headers else super().fallback_template()


class BareCalls(JsonCalls):
    def grammar(self) -> Reader[None]:
        while True:
            char = yield from skip_space()
            if char == ";" and not self.pending:
                char = yield from skip_space()
            yield from self._object(char, needs_arguments=True)


class BareCallParser(StreamParser):
    """The start of the reply alone decides whether it consists of calls."""

    def __init__(self) -> None:
        super().__init__(False, False, _bare_calls)
        self._state = self._bare

    def _bare(self, final: bool) -> bool:
        body = self._buffer.lstrip()
        if not final and PYTHON_TAG.startswith(body):
            return False
        body = body.removeprefix(PYTHON_TAG).lstrip()
        if body.startswith("{"):
            self.open_call(self._buffer[: len(self._buffer) - len(body)], body)
            return True
        if body or final:
            self._state = self.plain
        return bool(body) or final

    def after_call(self) -> Callable[[bool], bool]:
        return self.plain


def _bare_calls(first_index: int) -> CallScanner:
    return BareCalls(first_index)
