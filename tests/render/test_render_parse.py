"""Text of a reply to meaning: examples for each family."""

import json

import pytest

from openclaw_rl.render import collect
from openclaw_rl.types import Delta, Reply, ToolCall


def parse(renderer, text, tools=(), prompt_ids=()):
    parser = renderer.parser(list(prompt_ids), tools)
    return collect(parser.feed(text) + parser.finish())


WEATHER = ToolCall("get_weather", '{"text":  "é\\n"}')
RAW = '{"name": "get_weather", "arguments": {"text":  "é\\n"}}'
JSON_CASES = [
    (f"<tool_call>\n{RAW}\n</tool_call>", Reply("", "", (WEATHER,))),
    (f"<tool_call>[{RAW}, {RAW}]</tool_call>", Reply("", "", (WEATHER, WEATHER))),
    (
        f"Hm. \n<tool_call>{RAW}</tool_call>\n<tool_call>{RAW}</tool_call>\n",
        Reply("Hm.", "", (WEATHER, WEATHER)),
    ),
    (
        '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>',
        Reply("", "", (ToolCall("f", '{"a": 1}'),)),
    ),
    ('<tool_call>{"name": "f"}</tool_call>', Reply("", "", (ToolCall("f", "{}"),))),
    (
        '<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call>',
        Reply("", "", (ToolCall("f", '{"a": 1}'),)),
    ),
    (
        '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>!',
        Reply("!", "", (ToolCall("f", '{"a": 1'),)),
    ),
    ('<tool_call>{"name": "f", "arguments": {"a": "x', Reply("", "", (ToolCall("f", '{"a": "x'),))),
    ('<tool_call>{"name": "f", "arguments": {}} oops', Reply(" oops", "", (ToolCall("f", "{}"),))),
    ('a \n<tool_call>{"name": "f", "arg', Reply('a \n<tool_call>{"name": "f", "arg')),
    ("a \n<tool_call>nothing</tool_call> b", Reply("a \n<tool_call>nothing</tool_call> b")),
    ("<tool_call>[]</tool_call>", Reply("<tool_call>[]</tool_call>")),
    (f"<tool_call><tool_call>{RAW}</tool_call>", Reply("<tool_call>", "", (WEATHER,))),
    (f"<tool_call>{RAW}</tool_call>\nb ", Reply("\nb ", "", (WEATHER,))),
    ('<tool_call>{"arguments": {}, "name": "f"! x', Reply("! x", "", (ToolCall("f", "{}"),))),
    ("  plain \n", Reply("  plain \n")),
    ("1 < 2 <tool", Reply("1 < 2 <tool")),
]


@pytest.mark.parametrize("family", ["smollm2", "qwen3", "generic"])
@pytest.mark.parametrize(("text", "reply"), JSON_CASES)
def test_json_families(family, text, reply, renderer_of, tools):
    assert parse(renderer_of(family), text, tools) == reply


@pytest.mark.parametrize("family", ["smollm2", "qwen3", "qwen3.5", "llama3", "generic"])
def test_without_tools_a_call_is_content(family, renderer_of):
    for text in (RAW, f"a\n<tool_call>{RAW}</tool_call>\n"):
        assert parse(renderer_of(family), text) == Reply(text)


REASONING_CASES = [
    ("<think>\nwhy\n\nnot\n</think>\n\nyes\n", Reply("yes\n", "why\n\nnot")),
    ("\n<think>\n\n</think>\n\nyes", Reply("yes")),
    ("<think>\ncut off\n", Reply("", "cut off\n")),
    ("say <think>x</think>", Reply("say <think>x</think>")),
    ("<thin", Reply("<thin")),
    ("\n\nyes", Reply("\n\nyes")),
]


@pytest.mark.parametrize(("text", "reply"), REASONING_CASES)
def test_reasoning(text, reply, renderer_of):
    assert parse(renderer_of("qwen3"), text) == reply
    for family in ("smollm2", "llama3", "generic"):  # this generic tokenizer knows no <think>
        assert parse(renderer_of(family), text) == Reply(text)


def test_a_prompt_that_ends_inside_think_starts_in_reasoning(renderer_of, tools):
    renderer = renderer_of("qwen3.5")
    chat = [{"role": "user", "content": "hi"}]
    text = f"why\n</think>\n\n<tool_call>{RAW}</tool_call>"
    assert parse(renderer, text, prompt_ids=renderer.render(chat)).reasoning == "why"
    closed = parse(renderer, text, prompt_ids=renderer.render(chat, thinking=False))
    assert closed == Reply(text)


LLAMA_RAW = RAW.replace("arguments", "parameters")
LLAMA_CASES = [
    (f"\n{LLAMA_RAW}\n", Reply("", "", (WEATHER,))),
    (f"<|python_tag|>{LLAMA_RAW}", Reply("", "", (WEATHER,))),
    (f"{LLAMA_RAW}; {LLAMA_RAW}", Reply("", "", (WEATHER, WEATHER))),
    (f"{LLAMA_RAW} as asked", Reply(" as asked", "", (WEATHER,))),
    ('{"name": "Bob", "age": 3}', Reply('{"name": "Bob", "age": 3}')),
    ("<|python_tag|>print(1)", Reply("<|python_tag|>print(1)")),
    (f"Call: {LLAMA_RAW}", Reply(f"Call: {LLAMA_RAW}")),
    (' {"name": "f', Reply(' {"name": "f')),
]


@pytest.mark.parametrize(("text", "reply"), LLAMA_CASES)
def test_llama3(text, reply, renderer_of, tools):
    assert parse(renderer_of("llama3"), text, tools) == reply


def xml(*parameters, end="</function>\n</tool_call>"):
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function=get_weather>\n{body}{end}"


XML_CASES = [
    ([], {}),
    ([("text", 'a "q"\n\n<b> 3')], {"text": 'a "q"\n\n<b> 3'}),
    ([("text", "")], {"text": ""}),
    ([("text", "12"), ("count", "12"), ("ratio", "1.5"), ("flag", "True")],
     {"text": "12", "count": 12, "ratio": 1.5, "flag": True}),
    ([("items", '["a", 1]'), ("options", '{"k": null}'), ("maybe", "None")],
     {"items": ["a", 1], "options": {"k": None}, "maybe": None}),
    ([("count", "many"), ("unheard", "of"), ("other", "[1]")],
     {"count": "many", "unheard": "of", "other": [1]}),
]  # fmt: skip


@pytest.mark.parametrize(("parameters", "arguments"), XML_CASES)
@pytest.mark.parametrize("end", ["</function>\n</tool_call>", "</tool_call>"])
def test_qwen35_calls_become_typed_json(parameters, arguments, end, renderer_of, tools):
    reply = parse(renderer_of("qwen3.5"), "Ok.\n" + xml(*parameters, end=end), tools)
    assert reply.content == "Ok."
    assert [json.loads(call.arguments) for call in reply.tool_calls] == [arguments]


def test_qwen35_malformed(renderer_of, tools):
    renderer = renderer_of("qwen3.5")
    assert parse(renderer, "<tool_call>\n<function=", tools) == Reply("<tool_call>\n<function=")
    cut = parse(renderer, "<tool_call><function=f><parameter=text>\nab", tools)
    assert cut == Reply("", "", (ToolCall("f", '{"text": ab'),))
    astray = parse(renderer, xml(("text", "a"), end="well"), tools)
    assert astray == Reply("\nwell", "", (ToolCall("get_weather", '{"text": "a"}'),))


def test_deltas_come_as_soon_as_they_are_certain(renderer_of, tools):
    parser = renderer_of("qwen3").parser([], tools)
    assert parser.feed("<think>\nwh") == [Delta(reasoning="wh")]
    assert parser.feed("y\n</think>\n\nHel") == [Delta(reasoning="y"), Delta(content="Hel")]
    assert parser.feed("lo \n<tool") == [Delta(content="lo")]
    assert parser.feed('_call>\n{"name": "f"') == []
    first = Delta(tool_index=0, tool_name="f")
    assert parser.feed(', "arguments": {"a') == [first, Delta(tool_index=0, arguments='{"a')]
    assert parser.feed('": 1}}') == [Delta(tool_index=0, arguments='": 1}')]
    assert parser.feed("\n</tool_call>") == []
    assert parser.finish() == []


def test_qwen35_strings_stream(renderer_of, tools):
    parser = renderer_of("qwen3.5").parser([], tools)
    parser.feed("<tool_call>\n<function=get_weather>\n<parameter=text>\n")
    assert parser.feed("Par") == [Delta(tool_index=0, arguments="Par")]
    assert parser.feed("is\n</para") == [Delta(tool_index=0, arguments="is")]
