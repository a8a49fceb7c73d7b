"""One path: the ledger names a version for each scope, and the engine is made to agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.testing import ScriptedEngine, byte_tokenizer
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.train.publish import follow, promote
from openclaw_rl.types import EVERYONE, Policy, Scope, Weights

ANN, BEN = "user:ann", "user:ben"


class Table:
    def __init__(self, **named: int) -> None:
        self.named: dict[Scope, int] = {f"user:{name}": version for name, version in named.items()}

    def serving_table(self) -> dict[Scope, int]:
        return self.named

    def policy(self, version: int) -> Policy | None:
        return Policy(version, 0, "retired", 0.0, None, 1, "", {"finite": version != 9}, {})

    def promote(self, version: int, why: str, scope: Scope) -> None:
        self.named[scope] = version


class Engine(ScriptedEngine):
    """Counts what it is asked to load, and cannot load version 5."""

    def __init__(self) -> None:
        super().__init__(byte_tokenizer())
        self.loaded: list[int] = []

    async def load(self, weights: Weights) -> None:
        if weights.version == 5:
            raise ValueError("version 5 is gone")
        self.loaded.append(weights.version)
        await super().load(weights)


def weights_of(version: int) -> Weights:
    return Weights(version, f"far://{version}")


async def test_the_engine_agrees_with_the_ledger_and_is_left_alone_once_it_does() -> None:
    engine, table = Engine(), Table(ann=1, ben=2)
    for _ in range(2):
        assert await follow(table, engine, weights_of) == {ANN: 1, BEN: 2}
    assert dict(engine.status().serving) == {ANN: 1, BEN: 2}
    assert engine.loaded == [1, 2]
    table.named.pop(ANN)
    await follow(table, engine, weights_of)
    assert engine.status().version_for(ANN) == 0, "whom the ledger does not name is served the base"
    assert engine.status().version_for(BEN) == 2


async def test_a_version_that_is_gone_costs_its_own_scope_only() -> None:
    engine = Engine()
    with pytest.raises(ValueError, match="version 5 is gone"):
        await follow(Table(ann=5, ben=2), engine, weights_of)
    assert dict(engine.status().serving) == {BEN: 2}


def test_what_cannot_serve_is_refused_before_the_ledger_is_told(tmp_path: Path) -> None:
    table, store = Table(), PolicyStore(tmp_path)
    with pytest.raises(ValueError, match="no weights of policy version 7"):
        promote(table, store, 7, "by hand")
    for version in (8, 9):
        store.write(version, lambda folder: "far://away", {"version": version})
    with pytest.raises(ValueError, match="not finite"):
        promote(table, store, 9, "by hand")
    assert table.named == {}
    promote(table, store, 8, "by hand")
    assert table.named == {EVERYONE: 8}
