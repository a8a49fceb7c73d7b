"""The address that the start names can be opened as it stands."""

from __future__ import annotations

import socket

import pytest

from openclaw_rl.processes.serving import url_of


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]")]
)
def test_a_server_on_all_addresses_names_one_of_this_machine(host: str, shown: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip("no IPv6 here")
        assert url_of(listener) == f"http://{shown}:{listener.getsockname()[1]}"
