"""Reads the config and the tokenizer of a model folder.

transformers' Auto classes import model code and half of torch, two seconds of every start. They are used only
for files that leave something to a family's defaults or need a family's own tokenizer class.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

#: Tokenizers that are described by ``tokenizer.json`` alone.
_PLAIN_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")
_UNLIMITED = 1 << 60
#: What a config must state to be read without its family's defaults.
_STATED = {
    "architectures",
    "head_dim",
    "hidden_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
    "vocab_size",
}
#: Families whose configs are flat; for others also whether attention slides must be stated.
_NEVER_SLIDES, _MAY_SLIDE = ("llama",), ("qwen2", "qwen3")


def read_config(folder: Path) -> Any:
    """The model's config: attributes as transformers names them. Raises what ``AutoConfig`` raises."""
    stated = _read(folder / "config.json")
    return SimpleNamespace(**stated) if _is_complete(stated) else _auto_config(folder)


def model_type(folder: Path) -> str:
    """The family's name, as transformers has it."""
    stated = _read(folder / "config.json").get("model_type")
    return stated if isinstance(stated, str) else str(_auto_config(folder).model_type)


def read_tokenizer(folder: Path) -> Any:
    """Raises whatever the library's parser raises."""
    tokenizer = _load_tokenizer(folder)
    # It would print a warning for a longer text; we refuse what does not fit, and say so to who sent it.
    tokenizer.model_max_length = _UNLIMITED
    return tokenizer


def _load_tokenizer(folder: Path) -> Any:
    if _read(folder / "tokenizer_config.json").get("tokenizer_class") in _PLAIN_TOKENIZERS:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(folder)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def _auto_config(folder: Path) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder)


def _is_complete(stated: dict[str, Any]) -> bool:
    family, rope = stated.get("model_type"), stated.get("rope_parameters")
    is_flat = family in _NEVER_SLIDES or (family in _MAY_SLIDE and "use_sliding_window" in stated)
    if not is_flat or any(stated.get(name) is None for name in _STATED):
        return False
    return isinstance(rope, dict) and rope.get("rope_type") == "default" and "rope_theta" in rope


def _read(file: Path) -> dict[str, Any]:
    """Empty if it is missing or damaged; transformers then says what is wrong."""
    try:
        stated = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stated if isinstance(stated, dict) else {}
