"""``openclaw-rl setup``: asks a few questions and writes a config file; ``--yes`` uses the recommendations.

The memory a model needs is estimated: weights at 4 bytes per parameter on a CPU and 2 on a GPU, half as much
again for learning, plus 1 GiB. ``openclaw-rl doctor`` is exact once the model is downloaded.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass

from openclaw_rl.config import Config
from openclaw_rl.connect import CLIENTS
from openclaw_rl.models import DEFAULT_MODEL

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Choice:
    model: str
    parameters: float
    """In billions."""

    def needs_gib(self, on_gpu: bool) -> float:
        return self.parameters * 1e9 * (2 if on_gpu else 4) * 1.5 / _GIB + 1


CHOICES = (
    Choice(DEFAULT_MODEL, 0.135),
    Choice("Qwen/Qwen3-0.6B", 0.6),
    Choice("Qwen/Qwen3-1.7B", 1.7),
    Choice("Qwen/Qwen3-4B", 4.0),
    Choice("Qwen/Qwen3-8B", 8.2),
)


def run(options: argparse.Namespace, config: Config) -> int:
    path = config.home / "config.toml"
    if path.exists():
        raise ValueError(f"{path} is there already; change it, or move it away to be asked again")
    if not options.yes and not sys.stdin.isatty():
        raise ValueError("nobody is there to answer; 'openclaw-rl setup --yes' takes what is recommended")
    room, on_gpu = _memory()
    model = options.model or (recommend(room, on_gpu).model if options.yes else _ask_model(room, on_gpu))
    client = "" if options.yes else _ask_client()
    upstream = "" if options.yes else _ask_upstream()
    config.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(f'# Every setting: openclaw-rl serve --help\n[engine]\nmodel = "{model}"\n{upstream}')
    print(f"{path}: {model}. Data is kept in {config.home} (another folder: --home, OPENCLAW_RL_HOME).")
    print("Next: openclaw-rl start" + (f", then openclaw-rl connect {client} --write" if client else ""))
    return 0


def recommend(room_gib: float, on_gpu: bool) -> Choice:
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


def _ask_model(room: float, on_gpu: bool) -> str:
    best = CHOICES.index(recommend(room, on_gpu)) + 1
    print(f"Which model? This machine has {room:.0f} GiB of {'GPU ' if on_gpu else ''}memory.")
    for number, choice in enumerate(CHOICES, 1):
        needs = choice.needs_gib(on_gpu)
        fits = "recommended" if number == best else "fits" if needs <= room else "does not fit"
        print(f"  {number}  {choice.model:<24} needs about {needs:>4.1f} GiB (computed)  {fits}")
    said = input(f"A number, or any Hugging Face id, folder or GGUF file [{best}]: ").strip() or str(best)
    return CHOICES[int(said) - 1].model if said.isdecimal() and 0 < int(said) <= len(CHOICES) else said


def _ask_upstream() -> str:
    """The settings for taking over from an upstream model; empty unless its provider's terms allow it."""
    print("Shall a larger model behind an API answer at first, and this one take over from it?")
    url = input("Its URL, such as https://api.example.com/v1 [none]: ").strip()
    if not url or url == "none":
        return ""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is no URL; it begins with https://")
    print(f"This trains the model here on the answers of {url}. The terms of some providers forbid that.")
    if input("Do the terms of this one allow it? yes or no [no]: ").strip().lower() not in ("y", "yes"):
        print("Then nothing is learned from it, and the model here answers.")
        return ""
    return f'[serve]\nupstream = "{url}"\ntake_over = true\nupstream_terms = "allow-learning"\n'


def _ask_client() -> str:
    print(f"Which client shall be connected? {', '.join(CLIENTS)}, or none.")
    said = input("[none]: ").strip()
    if said and said != "none" and said not in CLIENTS:
        raise ValueError(f"there is no client {said!r}; known: {', '.join(CLIENTS)}")
    return "" if said == "none" else said
