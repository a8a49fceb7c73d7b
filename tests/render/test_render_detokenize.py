"""Ids to text and bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from openclaw_rl.render import create_renderer


def stream(renderer, ids):
    detokenizer = renderer.detokenizer()
    return [detokenizer.feed(id_) for id_ in ids] + [detokenizer.finish()]


@settings(max_examples=200, deadline=None)
@given(st.text().filter(lambda text: "<|" not in text))
def test_text_comes_back(tokenizer_of, renderer_of, text):
    tokenizer, renderer = tokenizer_of("qwen3"), renderer_of("qwen3")
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(stream(renderer, ids)) == text
    assert b"".join(renderer.token_bytes(id_) for id_ in ids) == text.encode()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 400), max_size=12))
def test_any_ids_equal_the_tokenizers_own_decoding(tokenizer_of, renderer_of, ids):
    tokenizer, renderer = tokenizer_of("qwen3"), renderer_of("qwen3")
    assert "".join(stream(renderer, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


def test_an_emoji_split_over_tokens_comes_out_whole(tokenizer_of, renderer_of):
    ids = tokenizer_of("smollm2").encode("a🦞b", add_special_tokens=False)
    assert len(ids) == 6
    assert stream(renderer_of("smollm2"), ids) == ["a", "", "", "", "🦞", "b", ""]
    assert stream(renderer_of("smollm2"), ids[:3])[-1] == "\ufffd"


def test_turn_tokens_are_silent_and_tags_are_not(tokenizer_of, renderer_of):
    vocabulary = tokenizer_of("qwen3").get_vocab()
    ids = [vocabulary[token] for token in ("<|im_start|>", "<think>", "<tool_call>", "<|im_end|>")]
    assert stream(renderer_of("qwen3"), ids) == ["", "<think>", "<tool_call>", "", ""]
    python_tag = tokenizer_of("llama3").get_vocab()["<|python_tag|>"]
    assert stream(renderer_of("llama3"), [python_tag])[0] == "<|python_tag|>"
    assert renderer_of("qwen3").token_bytes(ids[-1]) == b"<|im_end|>"


def test_ids_past_the_vocabulary_are_empty(renderer_of):
    assert renderer_of("qwen3").token_bytes(10**6) == b""


@pytest.fixture(scope="module")
def sentencepiece():
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁Hi", "▁you", "r", "▁"]
    backend = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", eos_token="</s>", clean_up_tokenization_spaces=False
    )


def test_sentencepiece_with_byte_fallback(sentencepiece):
    renderer, vocabulary = create_renderer(sentencepiece), sentencepiece.get_vocab()
    lobster = [vocabulary[f"<0x{byte:02X}>"] for byte in "🦞".encode()]
    ids = [
        vocabulary["▁Hi"],
        vocabulary["▁you"],
        vocabulary["r"],
        vocabulary["▁"],
        *lobster,
        vocabulary["</s>"],
    ]
    assert (
        "".join(stream(renderer, ids)) == "Hi your 🦞" == sentencepiece.decode(ids, skip_special_tokens=True)
    )
    assert renderer.token_bytes(ids[1]) == b" you"
    assert renderer.token_bytes(lobster[0]) == b"\xf0"
