"""Qwen3.5: like Qwen3, but calls are tags: ``<function=NAME>`` with one ``<parameter=KEY>`` each.

Arguments are emitted as JSON as they arrive. Strings stream; other values wait for their closing
tag, since only then is their type certain. A value that does not fit its schema is a string.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from openclaw_rl.render.base import TemplateRenderer
from openclaw_rl.render.calls import CallScanner, NotACall, Reader, expect, skip_space
from openclaw_rl.render.grammar import MAX_CHARS, argument_schema, arguments_schema, json_rule, literal
from openclaw_rl.render.schema import typed_json, types_of
from openclaw_rl.render.stream import partial_suffix
from openclaw_rl.types import Json, Tool, ToolCall

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_CALL_END = "</tool_call>"


#: A string runs up to its closing tag, as in the parser.
_TEXT_RULE = f'text[suffix="{_PARAMETER_END}"]: /(.|\\n)*/'


class Qwen35Renderer(TemplateRenderer):
    reasons = True

    def scanner(self, first_index: int, tools: Sequence[Tool]) -> CallScanner:
        return XmlCalls(first_index, tools)

    def calls_text(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(_call_text(call) for call in calls)

    def tool_grammar(self, tools: Sequence[Tool], max_chars: int = MAX_CHARS) -> str:
        rules = [self._call_rule(tool, number) for number, tool in enumerate(tools)]
        names = " | ".join(f"call_{number}" for number in range(len(tools)))
        opening, closing = (literal(text, self._added) for text in ("<tool_call>\n", f"\n{_CALL_END}"))
        return "\n".join([f"start: {opening} ({names}) {closing}", *rules, _TEXT_RULE, ""])

    def _call_rule(self, tool: Tool, number: int) -> str:
        """Required parameters in the schema's order, then any of the optional ones."""
        schema = arguments_schema(tool)
        required = set(schema.get("required") or ())
        parts = [json.dumps(f"{_FUNCTION}{tool['name']}>\n")]
        properties = schema.get("properties") or {}
        for key, value in sorted(properties.items(), key=lambda item: item[0] not in required):
            rule = _value_rule(argument_schema(schema, value))
            part = f"{json.dumps(f'{_PARAMETER}{key}>{chr(10)}')} {rule} {json.dumps(chr(10))}"
            parts.append(part if key in required else f"({part})?")
        return f"call_{number}: {' '.join(parts)} {json.dumps(_FUNCTION_END)}"


def _value_rule(schema: Json) -> str:
    """A parameter's value up to and including its closing tag."""
    closing = json.dumps(f"\n{_PARAMETER_END}")
    choices = schema.get("enum")
    if choices and all(isinstance(choice, str) for choice in choices):
        return f"({' | '.join(json.dumps(choice) for choice in choices)}) {closing}"
    return "text" if types_of(schema) == {"string"} else f"{json_rule(schema)} {closing}"


def _call_text(call: ToolCall) -> str:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = {}
    items = arguments.items() if isinstance(arguments, dict) else ()
    lines = [f"{_PARAMETER}{key}>\n{_written(value)}\n{_PARAMETER_END}\n" for key, value in items]
    return f"<tool_call>\n{_FUNCTION}{call.name}>\n{''.join(lines)}{_FUNCTION_END}\n{_CALL_END}"


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class XmlCalls(CallScanner):
    """One call, up to ``</tool_call>``."""

    def __init__(self, first_index: int, tools: Sequence[Tool]) -> None:
        self._schemas: dict[str, Json] = {tool["name"]: tool.get("parameters") or {} for tool in tools}
        self._value = ""
        self._as_string = False
        super().__init__(first_index)

    def grammar(self) -> Reader[None]:
        char = yield from skip_space()
        yield from expect(_FUNCTION, char)
        name = yield from _until_bracket()
        self.begin(name)
        last_tag = yield from self._parameters(self._schemas.get(name, {}))
        if last_tag == _FUNCTION_END:
            char = yield from skip_space()
            yield from expect(_CALL_END, char)

    def _parameters(self, schema: Json) -> Reader[str]:
        """Read all parameters; returns the tag that ended them (small models forget ``</function>``)."""
        opening, properties = "{", schema.get("properties") or {}
        try:
            while True:
                char = yield from skip_space()
                tag = yield from _one_of(char, (_PARAMETER, _FUNCTION_END, _CALL_END))
                if tag != _PARAMETER:
                    self._close(opening)
                    self.settle()
                    return tag
                key = yield from _until_bracket()
                self.arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
                opening = ", "
                self.settle()
                yield from self._parameter(types_of(properties.get(key)))
        except NotACall:
            # The parameters so far are complete, whatever follows. A reply that merely stops does not
            # get here: a truncated call stays visibly unfinished.
            self._close(opening)
            raise

    def _close(self, opening: str) -> None:
        self.arguments("}" if opening == ", " else "{}")

    def _parameter(self, types: frozenset[str]) -> Reader[None]:
        self._value, self._as_string = "", types == {"string"}
        self.arguments('"' if self._as_string else "")
        char = yield
        if char != "\n":
            self._value = char
        while not self._value.endswith(_PARAMETER_END):
            self._stream_value()
            self.settle()
            char = yield
            self._value += char
        text = self._value.removesuffix(_PARAMETER_END).removesuffix("\n")
        self.arguments(_escaped(text) + '"' if self._as_string else typed_json(text, types))
        self._value = ""
        self.settle()

    def _stream_value(self) -> None:
        if self._as_string:
            closing = "\n" + _PARAMETER_END
            keep = max(partial_suffix(self._value, closing), partial_suffix(self._value, _PARAMETER_END))
            sure = self._value[: len(self._value) - keep]
            self.arguments(_escaped(sure))
            self._value = self._value[len(sure) :]

    def finish(self) -> None:
        self.arguments(_escaped(self._value) if self._as_string else self._value)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _until_bracket() -> Reader[str]:
    out = ""
    char = yield
    while char != ">":
        if char in "<\n":
            raise NotACall
        out += char
        char = yield
    if not out.strip():
        raise NotACall
    return out.strip()


def _one_of(char: str, tags: Sequence[str]) -> Reader[str]:
    text = char
    while text not in tags:
        if not any(tag.startswith(text) for tag in tags):
            raise NotACall
        text += yield
    return text
