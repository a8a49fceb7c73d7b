"""``openclaw-rl import adapter FOLDER``: a PEFT LoRA adapter becomes a version, which the gate then checks.

An adapter is refused, with the reason, if it does not fit the model or training could not continue from it
with the current settings. The learn process checks it like its own versions; it serves only if it passes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.models import fingerprint
from openclaw_rl.processes.parts import model_folder, open_ledgers, open_store
from openclaw_rl.types import Json
from openclaw_rl.types.lora import ADAPTER_CONFIG, ADAPTER_FILE, ALL, lora_modules

_PREFIX, _KINDS = "base_model.model.", (".lora_A.weight", ".lora_B.weight")
_MOST_HEAD = 100_000_000
_OTHER_KINDS = ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "use_rslora", "lora_bias")


def import_adapter(options: argparse.Namespace, config: Config) -> int:
    if len(options.paths) != 2:
        raise ValueError("say which: openclaw-rl import adapter FOLDER")
    folder, model = Path(options.paths[1]), model_folder(config)
    settings = check_adapter(folder, model, config)
    ledgers, store = open_ledgers(config), open_store(config)
    try:
        policies = ledgers.policies
        parent, metrics = policies.serving(options.scope), _metrics()
        version = policies.reserve(parent, metrics, options.scope)
        manifest = {
            "version": version, "parent": parent, "scope": options.scope, "samples": [], "replayed": [],
            "factors": {}, "config_hash": "imported", "fingerprint": fingerprint(model), "metrics": metrics,
            "created_at": time.time(), "imported_from": folder.name,
        }  # fmt: skip
        store.write(version, lambda target: _copy(folder, target, settings, config.engine.model), manifest)
        policies.reserved(version)
    finally:
        ledgers.close()
    print(
        f"version {version}: the learn process checks it now, or when it next runs; "
        f"openclaw-rl policy show {version} says what came of it"
    )
    return 0


def check_adapter(folder: Path, model: Path, config: Config) -> Json:
    """The adapter's settings; ValueError that names what does not fit."""
    try:
        settings: Json = json.loads((folder / ADAPTER_CONFIG).read_text())
        shapes = _shapes(folder / ADAPTER_FILE)
    except OSError as error:
        raise ValueError(f"{folder} is no PEFT adapter: {Path(error.filename).name} is missing") from None
    except ValueError as error:
        raise ValueError(f"{folder} is damaged: {error}") from None
    if settings.get("peft_type") != "LORA" or any(settings.get(name) for name in _OTHER_KINDS):
        kind = next((name for name in _OTHER_KINDS if settings.get(name)), settings.get("peft_type"))
        raise ValueError(f"{folder} is no plain LoRA adapter ({kind}); nothing else can be served here")
    for flag, stated, now in (
        ("lora-rank", settings.get("r"), config.train.lora_rank),
        ("lora-alpha", settings.get("lora_alpha"), config.train.lora_alpha),
    ):
        if stated != now:
            raise ValueError(
                f"the adapter has --{flag} {stated}, training here {now}, and could not go on from it: "
                f"start the server and this command with --{flag} {stated}"
            )
    _check_shapes(shapes, _model_shapes(model), config)
    return settings


def _check_shapes(shapes: dict[str, list[int]], base: dict[str, list[int]], config: Config) -> None:
    adapted = set()
    for name, shape in shapes.items():
        kind = next((kind for kind in _KINDS if name.endswith(kind)), None)
        module = name.removeprefix(_PREFIX).removesuffix(kind or "")
        known = base.get(f"{module}.weight")
        if kind is None or known is None:
            raise ValueError(f"the adapter is for another model: {config.engine.model} has no {module}")
        fits = shape[1] == known[1] if kind == _KINDS[0] else shape[0] == known[0]
        if not fits or config.train.lora_rank not in shape:
            raise ValueError(
                f"the adapter is for another model: {module} is {known[0]} x {known[1]} in "
                f"{config.engine.model}, and its {kind[1:7]} is {shape[0]} x {shape[1]}"
            )
        adapted.add(module.rpartition(".")[2])
    targets = lora_modules(config.train.lora_targets)
    layers = {
        n.removesuffix(".weight").rpartition(".")[2]
        for n, s in base.items()
        if ".layers." in n and len(s) == 2
    }
    expected = layers if targets == ALL else layers & set(targets)
    if adapted != expected:
        raise ValueError(
            f"the adapter changes {', '.join(sorted(adapted))}, training here {', '.join(sorted(expected))}: "
            f"start the server and this command with --lora-targets {','.join(sorted(adapted))}"
        )


def _copy(folder: Path, target: Path, settings: Json, model: str) -> None:
    """Copy only the weights and their config, with our name of the base model."""
    shutil.copyfile(folder / ADAPTER_FILE, target / ADAPTER_FILE)
    (target / ADAPTER_CONFIG).write_text(json.dumps({**settings, "base_model_name_or_path": model}, indent=2))


def _metrics() -> Json:
    """Placeholder metrics of a training step; the gate checks the weights themselves."""
    zeros = ("loss", "grad_norm", "learning_rate", "ratio", "forward_s", "backward_s", "total_s")
    counts = ("num_samples", "num_tokens", "num_reply_tokens")
    return {**dict.fromkeys(zeros, 0.0), **dict.fromkeys(counts, 0), "finite": True, "mismatch": None}


def _model_shapes(model: Path) -> dict[str, list[int]]:
    return {
        name: shape for file in sorted(model.glob("*.safetensors")) for name, shape in _shapes(file).items()
    }


def _shapes(file: Path) -> dict[str, list[int]]:
    """The tensor shapes from a safetensors header: eight bytes of length, then JSON."""
    with file.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if length > _MOST_HEAD:
            raise ValueError(f"{file.name} is no safetensors file")
        head = json.loads(handle.read(length))
    return {name: entry["shape"] for name, entry in head.items() if name != "__metadata__"}
