"""Properties: any chunking gives one reply, nothing is lost, replies survive the round trip."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.render import collect
from openclaw_rl.types import Reply

PARTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>", "\n", " ", "a", "é🦞", ";",
    "<", "</",
    '{"name": "f", ', '"arguments": ', '"parameters": ', '{"a": "b\\""}', "}", "]", "[", ", ", "{", '"', "1",
    '{"name": "f", "arguments": {"a": [1, "}"]}}', "<function=f>", "<parameter=text>", "<parameter=count>",
    "</parameter>", "</function>", "x",
]  # fmt: skip
FAMILIES = ["smollm2", "qwen3", "qwen3.5", "llama3", "generic"]
TOOL = {
    "name": "f",
    "description": "",
    "parameters": {"properties": {"text": {"type": "string"}, "count": {"type": "integer"}}},
}
texts = st.lists(st.sampled_from(PARTS), max_size=20).map("".join)
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<{"), max_size=20)


def has_no_tags(text):
    """Hypothesis picks up the constants of this file, so that it does write tags."""
    return not any(tag in text for tag in ("<think>", "<tool_call>", '"name"'))


def run(renderer, pieces):
    parser = renderer.parser([], [TOOL])
    return collect([delta for piece in pieces for delta in parser.feed(piece)] + parser.finish())


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(FAMILIES), texts, st.data())
def test_chunking_does_not_matter(renderer_of, family, text, data):
    renderer = renderer_of(family)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = run(renderer, [text])
    assert run(renderer, list(text)) == whole
    assert run(renderer, pieces) == whole


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(FAMILIES), texts)
def test_without_calls_nothing_is_lost(renderer_of, family, text):
    reply = run(renderer_of(family), [text])
    if not reply.tool_calls and not text.lstrip().startswith("<think>"):
        assert reply == Reply(text)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(FAMILIES), st.text(max_size=40).filter(has_no_tags))
def test_any_text_without_tags_is_content(renderer_of, family, text):
    assert run(renderer_of(family), list(text)) == Reply(text)


values = {
    "text": words,
    "count": st.integers(),
    "flag": st.booleans(),
    "items": st.lists(st.one_of(words, st.none(), st.integers()), max_size=3),
    "options": st.dictionaries(words, words, max_size=3),
}
TYPES = {"text": "string", "count": "integer", "flag": "boolean", "items": "array", "options": "object"}
TYPED_TOOL = {
    "name": "do",
    "description": "",
    "parameters": {"type": "object", "properties": {key: {"type": kind} for key, kind in TYPES.items()}},
}
arguments = st.fixed_dictionaries({}, optional=values)


@st.composite
def replies(draw, family):
    calls = draw(st.lists(arguments, max_size=1 if family == "llama3" else 3))
    content = draw(words).strip()
    reasoning = draw(words).strip("\n") if family.startswith("qwen") else ""
    return "" if calls and family == "llama3" else content, reasoning, calls


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(["smollm2", "qwen3", "qwen3.5", "llama3"]))
def test_a_rendered_reply_is_read_back(renderer_of, data, family):
    content, reasoning, calls = data.draw(replies(family))
    renderer, user = renderer_of(family), {"role": "user", "content": "go"}
    message = {
        "role": "assistant",
        "content": content,
        "reasoning": reasoning,
        "tool_calls": [
            {"id": str(i), "name": "do", "arguments": json.dumps(call)} for i, call in enumerate(calls)
        ],
    }
    prompt_ids = renderer.render([user], [TYPED_TOOL])
    prompt, through = (
        "".join(renderer.token_bytes(i).decode("latin-1") for i in ids)
        for ids in (prompt_ids, renderer.render([user, message], [TYPED_TOOL], open_reply=False))
    )
    assert through.startswith(prompt)
    text = through[len(prompt) :].encode("latin-1").decode().rstrip("\n")
    text = text.removesuffix("<|im_end|>").removesuffix("<|eot_id|>")
    parser = renderer.parser(prompt_ids, [TYPED_TOOL])
    reply = collect([delta for char in text for delta in parser.feed(char)] + parser.finish())
    assert (reply.content, reply.reasoning) == (content, reasoning)
    assert [call.name for call in reply.tool_calls] == ["do"] * len(calls)
    assert [json.loads(call.arguments) for call in reply.tool_calls] == calls
