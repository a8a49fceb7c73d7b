"""``openclaw-rl setup``: asks a few questions and writes a config file; ``--yes`` uses the recommendations.

The memory a model needs is estimated: weights at 4 bytes per parameter on a CPU and 2 on a GPU, half as much
again for learning, plus 1 GiB. ``openclaw-rl doctor`` is exact once the model is downloaded.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl import connect
from openclaw_rl.commands.connect import server_of
from openclaw_rl.commands.estimate import EXAMPLE_TOKENS, Speeds, measure_speeds, tokens_per_step
from openclaw_rl.config import Config, load_config
from openclaw_rl.connect import CLIENTS
from openclaw_rl.errors import did_you_mean
from openclaw_rl.models import DEFAULT_MODEL
from openclaw_rl.text import toml_string

_GIB = 1 << 30
_YES = ("y", "yes")


@dataclass(frozen=True, slots=True)
class ModelChoice:
    model: str
    parameters: float
    """In billions."""

    def needs_gib(self, on_gpu: bool) -> float:
        return self.parameters * 1e9 * (2 if on_gpu else 4) * 1.5 / _GIB + 1


CHOICES = (
    ModelChoice(DEFAULT_MODEL, 0.135),
    ModelChoice("Qwen/Qwen3-0.6B", 0.6),
    ModelChoice("Qwen/Qwen3-1.7B", 1.7),
    ModelChoice("Qwen/Qwen3-4B", 4.0),
    ModelChoice("Qwen/Qwen3-8B", 8.2),
)


def run(options: argparse.Namespace, config: Config) -> int:
    if not options.yes and not sys.stdin.isatty():
        raise ValueError(
            "setup asks questions in a terminal; 'openclaw-rl setup --yes' uses the recommended settings"
        )
    home = config.home if options.yes or options.home else _ask_home(config.home)
    path = home / "config.toml"
    if path.exists():
        raise ValueError(f"{path} exists already; edit it, or delete it to run setup again")
    room, on_gpu = _memory()
    if options.model or options.yes:
        model = options.model or recommend(room, on_gpu).model
    else:
        model = _ask_model(room, on_gpu, config)
    client = "" if options.yes else _ask_client()
    serve = "" if options.yes else _ask_notes() + _ask_upstream()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = f"# Every setting: openclaw-rl serve --help\n[engine]\nmodel = {toml_string(model)}\n"
    text += f"[serve]\n{serve}" if serve else ""
    path.write_text(text, encoding="utf-8")
    print(f"{path}: {model}. Data is kept in {home}.")
    flag = "" if home == config.home and not options.home else f" --home {shlex.quote(str(home))}"
    if client:
        _connect(client, load_config({"home": home}), flag)
    print(f"Next: openclaw-rl start{flag}")
    return 0


def recommend(room_gib: float, on_gpu: bool) -> ModelChoice:
    """On a CPU the default, since larger ones are slow; on a GPU the largest that leaves half of it free."""
    if not on_gpu:
        return CHOICES[0]
    fitting = [choice for choice in CHOICES if choice.needs_gib(True) <= room_gib / 2]
    return fitting[-1] if fitting else CHOICES[0]


def _memory() -> tuple[float, bool]:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[1] / _GIB, True
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB, False


# --- questions -------------------------------------------------------------------------------


def _ask_home(usual: Path) -> Path:
    print("Where shall conversations, keys and trained versions be kept?")
    said = input(f"A folder [{usual}]: ").strip()
    folder = Path(said).expanduser().absolute() if said else usual
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder")
    return folder


def _ask_model(room: float, on_gpu: bool, config: Config) -> str:
    from openclaw_rl.algo import create_algorithm

    print("Measuring this machine …")
    speeds = measure_speeds("cuda" if on_gpu else "cpu")
    num_tokens = tokens_per_step(create_algorithm(config.learn).needs)
    best = CHOICES.index(recommend(room, on_gpu)) + 1
    print(f"Which model? This machine has {room:.0f} GiB of {'GPU ' if on_gpu else ''}memory.")
    for line in table(room, on_gpu, speeds, num_tokens):
        print(line)
    said = input(f"A number, or any Hugging Face id, folder or GGUF file [{best}]: ").strip() or str(best)
    return CHOICES[int(said) - 1].model if said.isdecimal() and 0 < int(said) <= len(CHOICES) else said


def table(room: float, on_gpu: bool, speeds: Speeds, num_tokens: int) -> Iterator[str]:
    """Each model's memory, speed and step; and which of the numbers were measured."""
    best = recommend(room, on_gpu)
    yield f"     {'model':<24} {'memory':>9} {'tokens/s':>9} {'a step':>9}"
    for number, choice in enumerate(CHOICES, 1):
        needs, parameters = choice.needs_gib(on_gpu), choice.parameters * 1e9
        fits = "recommended" if choice == best else "fits" if needs <= room else "does not fit"
        tokens, step = speeds.tokens_per_s(choice.model, parameters), speeds.step_s(parameters, num_tokens)
        numbers = f"{needs:>5.1f} GiB {'≤ ' + f'{tokens:.3g}':>9} {_duration(step):>9}"
        yield f"  {number}  {choice.model:<24} {numbers}  {fits}"
    bandwidth, products = speeds.machine.bandwidth / 1e9, speeds.products / 1e9
    yield (
        f"All computed, from what was measured now: {bandwidth:.0f} GB/s of memory, {products:,.0f} GFLOP/s "
        "in matrix products."
    )
    yield (
        f"tokens/s: one stream, at most. A step makes a version, here of {num_tokens // EXAMPLE_TOKENS} "
        f"examples of {EXAMPLE_TOKENS} tokens. Both are slower while others use the machine."
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _ask_notes() -> str:
    """The setting, unless it is the default."""
    print("Until a wish is learned, its person's requests can state it in the system prompt (a note).")
    said = input("Notes: on, ask (each needs a yes on the Wishes page), or off [on]: ").strip().lower()
    if said not in ("", "on", "ask", "off"):
        raise ValueError(f"notes cannot be {said!r}; they are on, ask or off")
    return f"notes = {toml_string(said)}\n" if said in ("ask", "off") else ""


def _ask_upstream() -> str:
    """The settings for taking over from an upstream model; empty unless its provider's terms allow it."""
    print("Shall a larger model behind an API answer at first, and this one take over from it?")
    url = input("Its URL, such as https://api.example.com/v1 [none]: ").strip()
    if not url or url == "none":
        return ""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is no URL; it begins with https://")
    print(f"This trains the model here on the answers of {url}. The terms of some providers forbid that.")
    if input("Do the terms of this one allow it? yes or no [no]: ").strip().lower() not in _YES:
        print("Then nothing is learned from it, and the model here answers.")
        return ""
    return f'upstream = {toml_string(url)}\ntake_over = true\nupstream_terms = "allow-learning"\n'


def _ask_client() -> str:
    print(f"Which client shall be connected? {', '.join(CLIENTS)}, or none.")
    said = input("[none]: ").strip()
    if said and said != "none" and said not in CLIENTS:
        close = did_you_mean(said, CLIENTS)
        raise ValueError(f"there is no client {said!r}; known: {', '.join(CLIENTS)}{close}")
    return "" if said == "none" else said


def _connect(client: str, config: Config, flag: str) -> None:
    """Its settings are written now or later, or said where there is no file for them."""
    server, later = server_of(config), f"openclaw-rl connect {client} --write{flag}"
    if not CLIENTS[client].edits(server, Path.home()):
        return connect.run(client, server, print)
    question = f"Write the settings of {CLIENTS[client].title} now? yes or no [yes]: "
    if input(question).strip().lower() not in ("", *_YES):
        print(f"Later: {later}")
        return None
    try:
        connect.run(client, server, print, write=True)
    except (ValueError, OSError) as error:
        print(f"Not written: {error}. Later: {later}")
    else:
        if config.engine.model != DEFAULT_MODEL:
            print(f"Once it serves, this also tells {CLIENTS[client].title} how long the context is: {later}")
    return None
