"""Text that can be written down: JSON may hold halves of surrogate pairs, UTF-8 may not.

Clients that cut strings by length (most JavaScript ones) send such halves now and then. They become
U+FFFD for the model and for whoever looks; the ledger keeps the request as sent.
"""

from __future__ import annotations

from typing import Any


def well_formed(value: Any) -> Any:
    """A JSON value with every lone surrogate replaced."""
    if isinstance(value, str):
        return value if value.isascii() else _repair(value)
    if isinstance(value, dict):
        return {well_formed(key): well_formed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [well_formed(item) for item in value]
    return value


def _repair(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
