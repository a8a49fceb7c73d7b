"""Which renderer is made, and when it stops."""

import pytest

from openclaw_rl.render import RENDERERS, create_renderer, guess_family
from openclaw_rl.render.qwen3 import Qwen3Renderer

FAMILIES = ["smollm2", "qwen3", "qwen3.5", "llama3", "generic"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_template_tells_the_family(family, tokenizer_of):
    assert type(create_renderer(tokenizer_of(family))) is RENDERERS[family]


def test_the_model_type_decides_without_a_template(tokenizer_of):
    assert guess_family(tokenizer_of("generic"), "qwen3_moe") == "qwen3"


def test_an_unknown_name_lists_the_known_ones(tokenizer_of):
    with pytest.raises(ValueError, match=r"smollm2, qwen3, qwen3\.5, llama3, generic"):
        create_renderer(tokenizer_of("qwen3"), name="qwen4")


def test_a_dotted_path_works(tokenizer_of):
    renderer = create_renderer(tokenizer_of("smollm2"), name="openclaw_rl.render.qwen3:Qwen3Renderer")
    assert type(renderer) is Qwen3Renderer
    with pytest.raises(ValueError, match="cannot load the renderer"):
        create_renderer(tokenizer_of("smollm2"), name="openclaw_rl.render.qwen3:Nothing")


def test_stop_ids_are_eos_turn_ends_and_extras(tokenizer_of):
    tokenizer = tokenizer_of("llama3")
    vocabulary = tokenizer.get_vocab()
    stops = create_renderer(tokenizer, extra_stop_ids=[7]).stop_ids
    assert stops == {vocabulary["<|eot_id|>"], vocabulary["<|eom_id|>"], 7}
