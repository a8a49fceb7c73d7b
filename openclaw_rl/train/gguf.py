"""Exports a merged version as a GGUF file for llama.cpp and programs built on it.

Supports the Llama family with a byte-level BPE tokenizer, in fp16. For others, llama.cpp's own converter
reads the output of ``--format merged``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_REMEDY = "export it with --format merged and run llama.cpp's convert_hf_to_gguf.py on that folder"
_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def export_gguf(policy: Path, base: Path, target: Path, name: str) -> None:
    """``name`` is the name that programs display."""
    import gguf
    import numpy as np
    from transformers import AutoConfig

    from openclaw_rl.train.export import merged_model

    if target.suffix != ".gguf":
        raise ValueError(f"{target} is no name for a GGUF file; give one such as --to {target}.gguf")
    if target.exists():
        raise ValueError(f"{target} is there already; choose another name, or remove it first")
    config = AutoConfig.from_pretrained(base)
    tokenizer = _read_tokenizer(base)
    splitting = _splitting(tokenizer)
    _check_shape(config)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.with_name(f".{target.name}.part")
    writer = gguf.GGUFWriter(work, "llama")
    try:
        writer.add_name(name)
        _add_shape(writer, config)
        writer.add_tokenizer_pre(splitting)
        _add_tokenizer(writer, gguf, base, tokenizer, config.vocab_size)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
        for place, values in _tensors(merged_model(policy, base), config, names):
            writer.add_tensor(place, values.astype(np.float16 if values.ndim > 1 else np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        work.rename(target)
    finally:
        work.unlink(missing_ok=True)


def _tensors(model: Any, config: Any, names: Any) -> Any:
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        for part, count in heads.items():
            if f".{part}." in name:
                values = _interleave(values, count)
        place = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert place is not None, name
        yield place, values


def _interleave(values: Any, num_heads: int) -> Any:
    """Interleave the rotary halves, as llama.cpp expects the rows of query and key weights."""
    rows, *rest = values.shape
    return values.reshape(num_heads, 2, rows // num_heads // 2, *rest).swapaxes(1, 2).reshape(values.shape)


def _check_shape(config: Any) -> None:
    if config.model_type != "llama":
        raise ValueError(f"models of type {config.model_type} cannot be written as GGUF here; {_REMEDY}")
    if config.rope_parameters["rope_type"] != "default":
        raise ValueError(f"models with stretched positions cannot be written as GGUF here; {_REMEDY}")


def _add_shape(writer: Any, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(1)  # mostly 16 bit


def _read_tokenizer(base: Path) -> dict[str, Any]:
    file = base / "tokenizer.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"model": {"type": None}}
    if found["model"]["type"] != "BPE":
        raise ValueError(f"this model's tokenizer cannot be written as GGUF here; {_REMEDY}")
    return found


def _add_tokenizer(writer: Any, gguf: Any, base: Path, tokenizer: dict[str, Any], size: int) -> None:
    by_id = {number: token for token, number in tokenizer["model"]["vocab"].items()}
    kinds = dict.fromkeys(by_id, gguf.TokenType.NORMAL)
    for added in tokenizer.get("added_tokens", []):
        by_id[added["id"]] = added["content"]
        kinds[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([by_id.get(i, f"[PAD{i}]") for i in range(size)])
    writer.add_token_types([kinds.get(i, gguf.TokenType.UNUSED) for i in range(size)])
    special = gguf.SpecialVocab(base, load_merges=True, n_vocab=size)
    # If unset, llama.cpp would choose by the pre-tokenizer.
    special.add_special_token.setdefault("bos", False)
    special.add_to_gguf(writer, quiet=True)


def _splitting(tokenizer: dict[str, Any]) -> str:
    """GGUF's name for the pre-tokenizer that the tokenizer's file spells out."""
    outer = tokenizer.get("pre_tokenizer") or {}
    steps = outer.get("pretokenizers", [outer])
    match steps:
        case [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        ]:
            return "smollm"
        case [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"},
            {"type": "ByteLevel", "use_regex": False},
        ] if pattern == _LLAMA3_PATTERN:
            return "llama-bpe"
    raise ValueError(f"how this model's tokenizer splits text has no known name in GGUF; {_REMEDY}")
