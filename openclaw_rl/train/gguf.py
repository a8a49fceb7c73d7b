"""A merged version as a GGUF file for llama.cpp and what is built on it.

Models of the Llama family with a byte-level BPE tokenizer, in 16 bit. For others, llama.cpp's own converter
reads what ``--format merged`` writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_REMEDY = "export it as merged and run llama.cpp's convert_hf_to_gguf.py on that folder"
#: GGUF's name of how a tokenizer splits text, by what its own file says.
_LLAMA3_PATTERN = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"


def export_gguf(policy: Path, base: Path, target: Path) -> None:
    import gguf
    import numpy as np

    from openclaw_rl.train.export import merged_model

    config = json.loads((base / "config.json").read_text())
    if config["model_type"] != "llama":
        raise ValueError(f"models of type {config['model_type']} cannot be written as GGUF here; {_REMEDY}")
    tokenizer = json.loads((base / "tokenizer.json").read_text())
    writer = gguf.GGUFWriter(target, "llama")
    _add_shape(writer, config)
    _add_tokenizer(writer, gguf, base, tokenizer, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in merged_model(policy, base).state_dict().items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        values = tensor.float().numpy()
        for part, count in heads.items():
            if f".{part}." in name:
                values = _interleave(values, count)
        place = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert place is not None, name
        writer.add_tensor(place, values.astype(np.float16 if values.ndim > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleave(values: Any, num_heads: int) -> Any:
    """Rotary halves side by side, as llama.cpp wants the rows of queries and keys."""
    rows, *rest = values.shape
    return values.reshape(num_heads, 2, rows // num_heads // 2, *rest).swapaxes(1, 2).reshape(values.shape)


def _add_shape(writer: Any, config: dict[str, Any]) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config.get("rope_parameters") or config
    writer.add_name(config.get("_name_or_path") or "openclaw-rl")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float(rope.get("rope_theta", 10000.0)))
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(1)  # mostly 16 bit


def _add_tokenizer(
    writer: Any, gguf: Any, base: Path, tokenizer: dict[str, Any], config: dict[str, Any]
) -> None:
    if tokenizer["model"]["type"] != "BPE":
        raise ValueError(f"this tokenizer cannot be written as GGUF here; {_REMEDY}")
    by_id = {number: token for token, number in tokenizer["model"]["vocab"].items()}
    kinds = dict.fromkeys(by_id, gguf.TokenType.NORMAL)
    for added in tokenizer.get("added_tokens", []):
        by_id[added["id"]] = added["content"]
        kinds[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    size = config["vocab_size"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_splitting(tokenizer))
    writer.add_token_list([by_id.get(i, f"[PAD{i}]") for i in range(size)])
    writer.add_token_types([kinds.get(i, gguf.TokenType.UNUSED) for i in range(size)])
    gguf.SpecialVocab(base, load_merges=True, n_vocab=size).add_to_gguf(writer)


def _splitting(tokenizer: dict[str, Any]) -> str:
    text = json.dumps(tokenizer.get("pre_tokenizer"))
    if '"individual_digits": true' in text:
        return "smollm"
    if _LLAMA3_PATTERN in json.loads(json.dumps(text)).replace("\\\\", "\\"):
        return "llama-bpe"
    raise ValueError(f"how this tokenizer splits text has no known name in GGUF; {_REMEDY}")
