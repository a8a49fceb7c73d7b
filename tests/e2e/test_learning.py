"""A conversation with somebody who wants short answers, on the real model, through the API alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.learn import User, is_short, mean_words
from openclaw_rl.processes.server_process import UNREMINDED
from openclaw_rl.testing import ServerProcess


@pytest.fixture(scope="module")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Without notes, so that what changed is in the weights. The kernel gives the same on any CPU."""
    flags = (*UNREMINDED, "--engine-options", "kernel=native")
    with ServerProcess(tmp_path_factory.mktemp("learning") / "home", *flags) as server:
        yield server


@pytest.mark.slow
def test_a_complaint_changes_what_the_model_does(server: ServerProcess) -> None:
    with closing(User(server)) as user:
        converse_and_compare(user, server)


def converse_and_compare(user: User, server: ServerProcess) -> None:
    before = user.held_out(8)
    user.converse(0)
    user.http.post("/v1/flush")
    user.wait()
    after = user.held_out(8)
    status = user.status()
    assert status["policy_version"] >= 1, server.log()  # type: ignore[operator]
    assert sum(map(is_short, before)) <= 1
    assert sum(map(is_short, after)) >= 3, after
    assert mean_words(after) < 0.5 * mean_words(before)
    # Nothing was lost on the way, and what served was checked first.
    funnel = status["funnel"]
    assert isinstance(funnel, dict)
    # A complaint makes a version; once the wish is kept there is nothing to complain about.
    assert funnel["by_state"]["trained"] >= 1
    assert sum(funnel["by_state"].values()) == funnel["turns"]
    for policy in user.http.get("/v1/policies").json()["data"][:-1]:
        assert policy["gate"]["passed"] == (policy["status"] != "rejected")
        assert policy["metrics"]["mismatch"] is None or policy["metrics"]["mismatch"] < 0.05
