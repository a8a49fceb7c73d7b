"""Basic types that all stages use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

    IntArray = np.ndarray[tuple[int, int], np.dtype[np.int32]]
    FloatArray = np.ndarray[tuple[int, int], np.dtype[np.float32]]
else:
    # Importing this file must not require numpy.
    IntArray = FloatArray = Any

Json = dict[str, Any]

#: One chat message in the internal form, whatever dialect it arrived in:
#: ``role`` (system | user | assistant | tool), ``content`` (str), and where present
#: ``reasoning`` (str), ``tool_calls`` ([{id, name, arguments}], arguments a JSON string as the
#: client or the model wrote it), ``tool_call_id`` and ``name``.
Message = dict[str, Any]

#: A tool in the internal form: ``name``, ``description``, ``parameters`` (a JSON schema).
Tool = dict[str, Any]

FinishReason = Literal["stop", "length", "cancelled"]
TurnKind = Literal["main", "side", "unknown"]
BASE_VERSION = 0
#: The version of a reply from an upstream model that the local model learns from (``--take-over``).
UPSTREAM_VERSION = -1

#: Who a policy is for: ``everyone``, ``user:<name>``, ``group:<name>`` or ``env:<name>``.
Scope = str
EVERYONE: Scope = "everyone"
