"""What a Tinker server says of a request that fails: refused for good, or only the server is away."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from openclaw_rl.errors import EngineAway
from openclaw_rl.tinker_service import TinkerService

TINKER = TinkerService()


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for the errors of the client's package."""
    error = type("TinkerError", (Exception,), {"status_code": 400, "body": None})
    module = ModuleType("tinker")
    values = {"TinkerError": error, "RequestFailedError": type("RequestFailedError", (error,), {})}
    for name, value in values.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "tinker", module)


def refused(detail: str) -> Exception:
    error = sys.modules["tinker"].TinkerError("Error code: 400")
    error.body = {"detail": detail}
    return TINKER.raised(error)


def test_a_refusal_says_why() -> None:
    made = refused("max_tokens must be a positive number")
    assert isinstance(made, ValueError)
    assert "max_tokens must be" in str(made)


@pytest.mark.parametrize("detail", ["", "All connection attempts failed"])
def test_skyrl_s_report_that_its_sampler_is_away_is_no_refusal(detail: str) -> None:
    assert isinstance(refused(detail), EngineAway)
