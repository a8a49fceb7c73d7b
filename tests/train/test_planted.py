"""Does the gate tell spoiled versions from good ones? Both are made on purpose, on the real default model.

The bounds were set on six kinds of spoiled versions and are scored on six others; docs/lab/gate.md has the
figures. ``make test-gate`` runs all of it, which takes half an hour, and CI one kind where the gate changed:
``make test-gate ARGS="-k spoiled_version"``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from openclaw_rl.algo.hinted import Hinted
from openclaw_rl.train.gate import GateResult
from tests.train.planted import NOISE, SCORED, SET_ON, SPOILED, WISHES, Workshop, table_row

on_one_loop = pytest.mark.asyncio(loop_scope="module")
QUICK = ("large noise",)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workshop(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Workshop]:
    made = Workshop(model_path, tmp_path_factory.mktemp("versions"))
    yield made
    await made.engine.close()


@pytest.fixture(scope="module")
def checked() -> dict[str, GateResult]:
    """What was made already."""
    return {}


async def spoil(workshop: Workshop, checked: dict[str, GateResult], kind: str) -> GateResult:
    if kind not in checked:
        checked[kind] = await workshop.spoil(kind)
        print(table_row(kind, checked[kind]))
    return checked[kind]


def test_half_of_the_kinds_were_never_looked_at_when_bounds_were_set() -> None:
    assert not set(SET_ON) & set(SCORED)
    assert {*SET_ON, *SCORED} == {*SPOILED, *NOISE, "facts lost", "tools broken"}


@pytest.mark.gate
@on_one_loop
@pytest.mark.parametrize("kind", QUICK)
async def test_a_spoiled_version_is_rejected(
    workshop: Workshop, checked: dict[str, GateResult], kind: str
) -> None:
    result = await spoil(workshop, checked, kind)
    assert not result.passed
    assert result.reason


@pytest.mark.gate
@on_one_loop
@pytest.mark.parametrize("kind", [kind for kind in SET_ON if kind not in QUICK])
async def test_what_the_bounds_were_set_on_is_rejected(
    workshop: Workshop, checked: dict[str, GateResult], kind: str
) -> None:
    assert not (await spoil(workshop, checked, kind)).passed


@pytest.mark.gate
@on_one_loop
async def test_of_the_other_kinds_one_in_six_passes_at_most(
    workshop: Workshop, checked: dict[str, GateResult]
) -> None:
    passed = [kind for kind in SCORED if (await spoil(workshop, checked, kind)).passed]
    assert len(passed) <= 1, passed


@pytest.mark.gate
@on_one_loop
async def test_of_twenty_good_versions_one_is_rejected_at_most(workshop: Workshop) -> None:
    results: dict[str, GateResult] = {}
    for name, wish in WISHES.items():
        if (result := await workshop.learn(wish, Hinted())) is None:
            print(f"| {name} | nothing was taught |", flush=True)
            continue
        results[name] = result
        print(table_row(name, result), flush=True)
        if len(results) == 20:
            break
    rejected = {name: result.reason for name, result in results.items() if not result.passed}
    assert len(results) == 20
    assert len(rejected) <= 1, rejected
