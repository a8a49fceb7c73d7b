"""A real SkyRL server on a CPU, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from openclaw_rl.testing import tiny_model
from tests.tinker.server_process import SkyRL, free_url, running


@pytest.fixture(scope="session")
def skyrl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkyRL]:
    model, folder = tiny_model(tmp_path_factory.mktemp("model")), tmp_path_factory.mktemp("skyrl")
    with running(SkyRL(model, folder, free_url())) as server:
        yield server
