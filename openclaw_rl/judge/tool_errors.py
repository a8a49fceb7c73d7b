"""Detects tool results that are errors, by structure: flags, error keys, exit codes, and the line formats
in which programs report failures. A page, a log or a manual that mentions errors is not an error.

The line that describes the error is returned, since it is a fact that a hint may use.
"""

from __future__ import annotations

import json
import re
from typing import Any

from openclaw_rl.judge.exchange import text_of
from openclaw_rl.patterns import read_patterns
from openclaw_rl.types import Message

_LINES = re.compile(
    "|".join(f"(?:{form})" for form in read_patterns("tool_errors", "openclaw_rl.judge")["lines"])
)
_ERROR_KEYS = ("error", "errors", "exception", "error_message", "errorMessage")
_CODE_KEYS = ("exit_code", "exitCode", "exitcode", "returncode", "return_code", "exit_status")
_FLAG_KEYS = {"is_error": True, "isError": True, "ok": False, "success": False, "failed": True}
_STATUS_KEYS = ("status", "status_code", "statusCode", "code", "http_status")
_STATUS_WORDS = frozenset(
    {"error", "failed", "failure", "fail", "exception", "denied", "rejected", "timeout"}
)
#: A document may contain error lines; in an output longer than this, only the lines at its edges count.
_SHORT_LINES, _EDGE_LINES = 12, 4
#: Tools that show text written by others: an error line in it belongs to the text.
_READERS = re.compile(
    r"read|cat\b|view|search|grep|fetch|browse|docs?|get_page|open_url|memory|log", re.IGNORECASE
)


def error_in(message: Message) -> str | None:
    """The line that describes the error, or None."""
    text = text_of(message).strip()
    if message.get("is_error") is True or message.get("isError") is True:
        return _one_line(text) or "flagged as an error"
    if (value := _json(text)) is not None:
        return _structured_error(value)
    return _line_error(text, is_reader=bool(_READERS.search(str(message.get("name", "")))))


def _line_error(text: str, is_reader: bool) -> str | None:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if len(lines) > _SHORT_LINES:
        lines = lines[:_EDGE_LINES] + lines[-_EDGE_LINES:]
    found = [line for line in lines if _LINES.fullmatch(line)]
    # A reader's own error is the only line, or the first with one or two after it; elsewhere it is content.
    begins = bool(lines) and len(lines) <= 3 and bool(_LINES.fullmatch(lines[0]))
    if not found or (is_reader and len(lines) > 2 and not begins and not _is_traceback_only(lines)):
        return None
    return _one_line(found[-1])


def _is_traceback_only(lines: list[str]) -> bool:
    return lines[0].startswith("Traceback (most recent call last)") and bool(_LINES.fullmatch(lines[-1]))


def _structured_error(value: Any) -> str | None:
    if isinstance(value, list):
        found = [error for item in value if (error := _structured_error(item)) is not None]
        return found[0] if found and len(found) == len(value) else None
    if not isinstance(value, dict):
        return None
    for key in _ERROR_KEYS:
        if key in value and value[key] not in (None, False, "", 0, [], {}, "none", "None"):
            return _one_line(_text(value[key]))
    described = next((value[key] for key in ("message", "stderr", "detail", "reason") if value.get(key)), "")
    for key, bad in _FLAG_KEYS.items():
        if value.get(key) is bad:
            return _one_line(_text(described) or f"{key} is {str(bad).lower()}")
    for key in _CODE_KEYS:
        if isinstance(value.get(key), int) and value[key] != 0:
            return _one_line(_text(described) or f"exit code {value[key]}")
    for key in _STATUS_KEYS:
        if _bad_status(value.get(key)):
            return _one_line(_text(described) or f"{key} {value[key]}")
    nested = [
        value[key] for key in ("result", "output", "response", "content") if isinstance(value.get(key), dict)
    ]
    return next((error for item in nested if (error := _structured_error(item)) is not None), None)


def _bad_status(status: Any) -> bool:
    if isinstance(status, bool) or status is None:
        return False
    if isinstance(status, int):
        return 400 <= status <= 599
    return str(status).strip().lower() in _STATUS_WORDS or bool(
        re.fullmatch(r"[45]\d\d", str(status).strip())
    )


def _json(text: str) -> Any:
    if not text.startswith(("{", "[")):
        return None
    try:
        return json.JSONDecoder().raw_decode(text)[0]  # text after the value is ignored
    except (ValueError, RecursionError):
        return None


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("message") or value.get("detail") or json.dumps(value, ensure_ascii=False))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
