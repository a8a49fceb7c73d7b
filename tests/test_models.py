from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.models import (
    DEFAULT_MODEL,
    Recommended,
    _convert_once,
    default_cache_dir,
    recommended_sampling,
    resolve_model,
)


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_path)


def _folder(path: Path, **without: bool) -> Path:
    path.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not without.get(name.split(".")[0]):
            (path / name).write_text("{}")
    return path


# --- how to sample ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (None, Recommended(0.7, 0.9, 0)),
        ({"eos_token_id": 2}, Recommended(0.7, 0.9, 0)),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}, Recommended(0.6, 0.95, 20)),
        ({"temperature": 0.6}, Recommended(0.6, 1.0, 0)),  # what its makers leave out is neutral
        ({"do_sample": False, "temperature": 0.6}, Recommended(0.0, 1.0, 0)),
        ({"do_sample": None, "temperature": None}, Recommended(0.7, 0.9, 0)),
    ],
)
def test_a_model_says_how_it_wants_to_be_sampled(
    stated: dict[str, Any] | None, expected: Recommended, tmp_path: Path
) -> None:
    if stated is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(stated))
    assert recommended_sampling(tmp_path) == expected


# --- names -----------------------------------------------------------------------------------


def test_import_is_instant() -> None:
    code = (
        "import sys, openclaw_rl.models as m; print(*({'torch', 'transformers', 'httpx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_cache_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENCLAW_RL_CACHE", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv("OPENCLAW_RL_CACHE")
    assert default_cache_dir() == Path.home() / ".cache/openclaw-rl"


def test_a_complete_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "mine")
    assert resolve_model(str(folder), tmp_path / "cache") == folder
    assert not (tmp_path / "cache").exists()


def test_an_incomplete_folder_is_refused_and_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lacks model\.safetensors"):
        resolve_model(str(_folder(tmp_path / "a", model=True)), tmp_path)
    with pytest.raises(ValueError, match=r"lacks tokenizer\.json"):
        resolve_model(str(_folder(tmp_path / "b", tokenizer=True)), tmp_path)


def test_every_shard_must_be_there(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "sharded", model=True)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1.safetensors").touch()
    with pytest.raises(ValueError, match=r"lacks model-2\.safetensors"):
        resolve_model(str(folder), tmp_path)
    (folder / "model-2.safetensors").touch()
    assert resolve_model(str(folder), tmp_path) == folder


@pytest.mark.parametrize("name", ["nonsense", "/no/such/folder", "no/such.gguf"])
def test_an_unknown_name_lists_what_is_possible(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=DEFAULT_MODEL):
        resolve_model(name, tmp_path)


def test_a_hub_id_without_network_says_so(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from openclaw_rl.models import resolve_model\n"
        "try: resolve_model('no-one/nothing', Path(sys.argv[1]))\n"
        "except ValueError as error: print(error)"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "check the network" in done.stdout


# --- the cache -------------------------------------------------------------------------------


def test_a_file_that_is_no_gguf_leaves_no_cache_entry(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    with pytest.raises(ValueError, match=r"could not convert broken\.gguf"):
        resolve_model(str(broken), tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache/models").iterdir()] == [".lock"]


_HANG = """
import sys, time
from pathlib import Path
from openclaw_rl.models import _convert_once

def hang(work):
    (work / "half").touch()
    print("started", flush=True)
    time.sleep(60)

_convert_once("0" * 64, Path(sys.argv[1]), hang)
"""


def _start_hanging(cache: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", _HANG, str(cache)], stdout=pipe, stderr=pipe, text=True)


def test_leftovers_of_a_killed_process_are_removed_and_its_lock_is_free(tmp_path: Path) -> None:
    with _start_hanging(tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.kill()
    assert len(list((tmp_path / "models").glob(".gguf-*"))) == 1
    with pytest.raises(ValueError, match="could not convert"):
        _convert_once("0" * 64, tmp_path, lambda work: work / "none.gguf")
    assert list((tmp_path / "models").glob(".gguf-*")) == []


def test_a_second_process_waits_for_the_first(tmp_path: Path) -> None:
    with _start_hanging(tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "started\n"
        with _start_hanging(tmp_path) as second:
            assert second.stdout is not None
            assert second.stderr is not None
            assert "another process" in second.stderr.readline()
            first.kill()
            assert second.stdout.readline() == "started\n"
            second.kill()


def test_the_default_model_is_found_again_without_any_work(model_path: Path) -> None:
    """Nothing is read but names: no file is hashed or opened, no package is imported that could convert."""
    code = (
        "import sys\n"
        "from openclaw_rl.models import DEFAULT_MODEL, cached_model, default_cache_dir, resolve_model\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, arguments: event == 'open' and opened.append(str(arguments[0])))\n"
        "path = resolve_model(DEFAULT_MODEL, default_cache_dir())\n"
        "assert cached_model(DEFAULT_MODEL, default_cache_dir()) == path\n"
        "weights = [name for name in opened if name.endswith(('.gguf', '.safetensors', '.lock'))]\n"
        "print(path, weights, {'torch', 'transformers', 'gguf', 'httpx'} & set(sys.modules), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(model_path), "[]", "set()"]


# --- the default model -----------------------------------------------------------------------


def test_config(model_path: Path) -> None:
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(model_path)
    assert config.max_position_embeddings == 8192
    assert config.rope_parameters["rope_theta"] == 100_000
    assert config.tie_word_embeddings
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)
    assert "quantization_config" not in json.loads((model_path / "config.json").read_text())
    assert GenerationConfig.from_pretrained(model_path).eos_token_id == 2


def test_weights_are_fp32_and_tied_ones_saved_once(model_path: Path) -> None:
    from safetensors import safe_open

    with safe_open(model_path / "model.safetensors", "pt") as file:
        names = set(file.keys())
        dtypes = {file.get_slice(name).get_dtype() for name in names}
    assert dtypes == {"F32"}
    assert len(names) == 272
    assert "lm_head.weight" not in names


def test_special_tokens(tokenizer: Any) -> None:
    assert tokenizer.bos_token == "<|im_start|>"
    assert tokenizer.eos_token == tokenizer.pad_token == "<|im_end|>"
    assert tokenizer.unk_token == "<|endoftext|>"
    assert tokenizer("<|im_start|>a<|im_end|>").input_ids[::2] == [1, 2]


def test_pre_tokenizer_splits_digits_first(tokenizer: Any) -> None:
    pieces = [
        piece for piece, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("in 2024, x1y22")
    ]
    assert pieces == ["in", "Ġ", "2", "0", "2", "4", ",", "Ġx", "1", "y", "2", "2"]
    ids = tokenizer("1234567890").input_ids
    assert [tokenizer.decode([token]) for token in ids] == list("1234567890")


@pytest.mark.parametrize(
    "text",
    ["", " ", "Hello, world!", "  two  spaces\n\n\ttab ", "x = 3.14159", "naïve 東京 🦀", "it 's , ok ."],
)
def test_round_trip_adds_nothing(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text).input_ids
    assert ids == tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == text


def test_chat_template(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.slow
def test_it_answers_sensibly(model_path: Path, tokenizer: Any) -> None:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(model_path)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, max_new_tokens=32, do_sample=False)
    reply = output[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(reply)
    assert reply[-1] == tokenizer.eos_token_id
