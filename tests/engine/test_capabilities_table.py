"""The table in docs/engines.md is what the engines say of themselves."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from openclaw_rl.engine import ENGINES, capabilities_of
from openclaw_rl.engine.fireworks import FireworksEngine
from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.tinker import TinkerEngine
from openclaw_rl.engine.vllm import VllmEngine
from openclaw_rl.types import Capabilities

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"
CLASSES = {"local": LocalEngine, "vllm": VllmEngine, "tinker": TinkerEngine, "fireworks": FireworksEngine}


def test_every_engine_and_every_capability_is_in_the_table() -> None:
    assert set(CLASSES) == set(ENGINES)
    lines = PAGE.read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    table = {row[0]: dict(zip(CLASSES, row[1:], strict=True)) for row in rows if len(row) == 5}
    for field in fields(Capabilities):
        stated = {name: table[field.name][name] for name in CLASSES}
        actual = {name: getattr(kind.capabilities, field.name) for name, kind in CLASSES.items()}
        assert stated == {name: words(value) for name, value in actual.items()}, field.name


def words(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    return "yes" if value else "no"


def test_what_is_known_before_an_engine_is_made_is_what_it_says() -> None:
    assert {name: capabilities_of(name) for name in CLASSES} == {
        name: kind.capabilities for name, kind in CLASSES.items()
    }
