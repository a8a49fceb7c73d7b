"""``TemplateRenderer``: everything the families share.

Guarantees: ordinary conversations get exactly the ids of the tokenizer's own chat template; text
inside messages never becomes a control token; no system or user text is silently dropped if some
arrangement of the conversation keeps it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib.resources import files
from typing import Any, ClassVar

from openclaw_rl.render import messages as shape
from openclaw_rl.render.calls import CallScanner, JsonCalls
from openclaw_rl.render.detokenize import StreamDetokenizer, TokenBytes
from openclaw_rl.render.grammar import MAX_CHARS, call_schema, json_grammar, json_rule, literal
from openclaw_rl.render.guard import TextGuard, new_mark
from openclaw_rl.render.stream import THINK, THINK_END, StreamParser
from openclaw_rl.types import Delta, Detokenizer, Json, Message, Reply, ReplyParser, Tool, ToolCall

#: Added tokens that a parser reads: their text is emitted even where they are flagged special.
MARKERS = frozenset(
    {THINK, THINK_END, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<|python_tag|>"}
)

#: For tokenizers without a template that have the two ChatML tokens.
CHATML_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

#: For tokenizers with neither: a transcript. The model has to end its own reply with EOS.
TEXT_TEMPLATE = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)

_EXAMPLE = ToolCall("tool_name", '{"argument": "value"}')
_TAG = re.compile(r"[<\[].+[>\]]", re.DOTALL)


class TemplateRenderer:
    """Renders through the chat template of a fast transformers tokenizer."""

    turn_ends: ClassVar[tuple[str, ...]] = ("<|im_end|>", "<|endoftext|>")
    """Tokens that end a reply, where the vocabulary has them, besides the EOS token."""
    reasons: bool = False
    """Whether ``<think>`` blocks are reasoning."""

    def __init__(self, tokenizer: Any, extra_stop_ids: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        ends = {id_ for id_, token in added.items() if token.content in self.turn_ends}
        eos = tokenizer.eos_token_id
        self.stop_ids = frozenset(ends | set(extra_stop_ids) | ({eos} if eos is not None else set()))
        self._added = {id_: token.content for id_, token in added.items()}
        self._special = {id_: token.content for id_, token in added.items() if token.special}
        self._mark = new_mark()
        self._own_guard = TextGuard(self._special.values(), self._mark)
        tags = {token.content for token in added.values() if _TAG.fullmatch(token.content)}
        self._outside_guard = TextGuard(tags | set(self._special.values()), self._mark)

    # --- messages to ids ---------------------------------------------------------------------

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        thinking: bool | None = None,
        open_reply: bool = True,
    ) -> list[int]:
        """Prompt ids, ending where the assistant's reply begins, or where the last message ends."""
        native = self._knows_tools
        chat = [self._protect(item) for item in shape.normalise(messages, parse_arguments=native)]
        specs = self._outside_guard.protect(shape.tool_specs(tools))
        chat = shape.as_template(chat) if native else self._text_chat(chat, specs)
        text = self._fill(chat, specs if native else [], thinking, open_reply)
        return self._encode(text.split(self._mark))

    def _protect(self, item: Json) -> Json:
        # Users and tools may not write tags like <tool_response> either; system prompts and the
        # model's own text may, since templates look for <think> in it.
        outside = item["role"] in ("user", "tool")
        protected: Json = (self._outside_guard if outside else self._own_guard).protect(item)
        return protected

    def _text_chat(self, chat: list[Json], specs: list[Json]) -> list[Json]:
        chat = shape.as_text(chat, self.calls_text)
        return shape.with_tool_prompt(chat, self._tool_prompt(specs)) if specs else chat

    def _tool_prompt(self, specs: list[Json]) -> str:
        lines = "\n".join(json.dumps(spec["function"], ensure_ascii=False) for spec in specs)
        prompt = files(__package__).joinpath("tools_prompt.txt").read_text(encoding="utf-8").strip()
        return prompt.replace("{example}", self.calls_text([_EXAMPLE])).replace("{tools}", lines)

    def calls_text(self, calls: Sequence[ToolCall]) -> str:
        """Tool calls as the family writes them, for templates that do not support tools."""
        return "\n".join(f"<tool_call>\n{call_json(call)}\n</tool_call>" for call in calls)

    call_frame: ClassVar[tuple[str, str, str]] = ("<tool_call>\n", "\n</tool_call>", "arguments")
    """The text before and after a JSON call, and the key of its arguments."""

    def tool_grammar(self, tools: Sequence[Tool], max_chars: int = MAX_CHARS) -> str:
        """A grammar for exactly one call of one of the tools, as the family writes it."""
        opening, closing, key = self.call_frame
        parts = [literal(opening, self._added), "call", literal(closing, self._added)]
        return (
            f"start: {' '.join(filter(None, parts))}\ncall: {json_rule(call_schema(tools, key), max_chars)}\n"
        )

    def json_grammar(self, schema: Json, max_chars: int = MAX_CHARS) -> str:
        """A grammar for one JSON value of the schema and nothing else."""
        return json_grammar(schema, max_chars)

    def _fill(self, chat: list[Json], specs: list[Json], thinking: bool | None, open_reply: bool) -> str:
        options = {} if thinking is None else {"enable_thinking": thinking}
        best: str | None = None
        refusal: Exception | None = None
        for attempt in shape.repairs(chat):
            try:
                text: str = self.tokenizer.apply_chat_template(
                    attempt,
                    tools=specs or None,
                    chat_template=self._template,
                    add_generation_prompt=open_reply,
                    tokenize=False,
                    **options,
                )
            except Exception as error:  # a template may raise anything
                refusal = refusal or error
                continue
            if all(item["content"].strip() in text for item in chat if item["role"] in ("system", "user")):
                return text
            best = text if best is None else best
        if best is None:
            raise ValueError(
                f"the chat template refuses this conversation ({refusal}); "
                "change the order of the messages or set another chat_template on the tokenizer"
            ) from refusal
        return best

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, none of which becomes a control token."""
        protected: str = self._own_guard.protect(text)
        return self._encode(protected.split(self._mark))

    def _encode(self, pieces: Sequence[str]) -> list[int]:
        ids: list[int] = list(self.tokenizer.encode(pieces[0], add_special_tokens=False))
        for piece in pieces[1:]:
            ids += self._encode_rest(piece)
        return ids

    def _encode_rest(self, piece: str) -> list[int]:
        """Encode after a control token, because some tokenizers put a space before the first word."""
        anchor = next(iter(self._special.items()), None)
        if anchor is not None:
            ids: list[int] = self.tokenizer.encode(anchor[1] + piece, add_special_tokens=False)
            if ids[:1] == [anchor[0]]:
                return ids[1:]
        return list(self.tokenizer.encode(piece, add_special_tokens=False))

    # --- the template ------------------------------------------------------------------------

    @cached_property
    def _template(self) -> str:
        template = self.tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("tool_use") or template.get("default")
        return template or self.fallback_template()

    def fallback_template(self) -> str:
        vocabulary = self.tokenizer.get_vocab()
        return CHATML_TEMPLATE if {"<|im_start|>", "<|im_end|>"} <= vocabulary.keys() else TEXT_TEMPLATE

    @cached_property
    def _knows_tools(self) -> bool:
        return re.search(r"\btools\b", self._template) is not None

    # --- ids to meaning ----------------------------------------------------------------------

    def parser(self, prompt_ids: Sequence[int], tools: Sequence[Tool] = ()) -> ReplyParser:
        in_think = self.reasons and self._ends_in_think(prompt_ids)
        new_scanner = (lambda first_index: self.scanner(first_index, tools)) if tools else None
        return StreamParser(self.reasons, in_think, new_scanner)

    def scanner(self, first_index: int, tools: Sequence[Tool]) -> CallScanner:
        """Reads the inside of one ``<tool_call>`` tag."""
        return JsonCalls(first_index)

    def _ends_in_think(self, prompt_ids: Sequence[int]) -> bool:
        tail = b"".join(self.token_bytes(id_) for id_ in prompt_ids[-32:])
        return tail.rstrip().endswith(THINK.encode())

    def detokenizer(self) -> Detokenizer:
        silent = {id_ for id_, text in self._special.items() if text not in MARKERS}
        return StreamDetokenizer(self._token_bytes, silent | self.stop_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token (control tokens: their written form)."""
        return self._token_bytes[token_id]

    @cached_property
    def _token_bytes(self) -> TokenBytes:
        return TokenBytes(self.tokenizer)


def call_json(call: ToolCall, arguments_key: str = "arguments") -> str:
    """One call as a JSON object, with the arguments exactly as they were written."""
    name = json.dumps(call.name, ensure_ascii=False)
    return f'{{"name": {name}, "{arguments_key}": {call.arguments}}}'


def collect(deltas: Iterable[Delta]) -> Reply:
    """Join the deltas of one reply."""
    content, reasoning = [], []
    calls: dict[int, tuple[str, list[str]]] = {}
    for delta in deltas:
        content.append(delta.content)
        reasoning.append(delta.reasoning)
        if delta.tool_index is not None:
            calls.setdefault(delta.tool_index, (delta.tool_name, []))[1].append(delta.arguments)
    joined = tuple(ToolCall(name, "".join(parts)) for _, (name, parts) in sorted(calls.items()))
    return Reply("".join(content), "".join(reasoning), joined)
