"""A small byte-level tokenizer for each family, with templates written from the families' rules."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from openclaw_rl.render import create_renderer

TEMPLATES = Path(__file__).parent / "templates"
CORPUS = ["the user asks the weather in Paris", '{"name": "get_weather", "arguments": {"city": "Paris"}}'] * 4
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
SPECIAL = {
    "smollm2": CHATML,
    "qwen3": CHATML,
    "qwen3.5": CHATML,
    "llama3": [
        "<|begin_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|python_tag|>",
    ],
    "generic": ["</s>"],
}
EOS = {"llama3": "<|eot_id|>", "generic": "</s>"}


@cache
def build_tokenizer(family: str) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens(SPECIAL[family])
    if family.startswith("qwen"):
        backend.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    bos = {"bos_token": "<|begin_of_text|>"} if family == "llama3" else {}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=EOS.get(family, "<|im_end|>"),
        clean_up_tokenization_spaces=False,
        **bos,
    )
    template = TEMPLATES / f"{family}.jinja"
    tokenizer.chat_template = template.read_text().rstrip("\n") if template.exists() else None
    return tokenizer


@cache
def build_renderer(family: str) -> Any:
    return create_renderer(build_tokenizer(family), name=family)


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[[str], PreTrainedTokenizerFast]:
    return build_tokenizer


@pytest.fixture(scope="session")
def renderer_of() -> Callable[[str], Any]:
    return build_renderer


@pytest.fixture(scope="session")
def tools() -> list[dict[str, Any]]:
    properties = {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "items": {"type": "array"},
        "options": {"type": "object"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    }
    schema = {"type": "object", "properties": properties}
    return [{"name": "get_weather", "description": "Looks up.", "parameters": schema}]
