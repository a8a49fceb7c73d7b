"""The ledger as the outside sees it: sessions, turns and counts in the API's words."""

from __future__ import annotations

from openclaw_rl.capture.ledger import Ledger
from openclaw_rl.types import Json

#: Why a turn that will not train does not, in words for a person.
_CANCELLED = "the client left before the reply was complete"


def view_turn(ledger: Ledger, turn_id: str) -> Json | None:
    summary = ledger.turn_summary(turn_id)
    return None if summary is None else _describe(summary)


def _describe(summary: Json) -> Json:
    cancelled = summary["finish_reason"] == "cancelled"
    return {
        "id": summary["id"],
        "session_id": summary["session_id"],
        "user": summary["user"],
        "kind": summary["kind"],
        "state": "excluded" if cancelled else "waiting",
        "reason": _CANCELLED if cancelled else "waiting for what comes next",
        "continues": summary["continues"],
        "next_state": None,
        "verdict": None,
        "policy_version": summary["policy_version"],
        "prompt_tokens": summary["prompt_tokens"],
        "completion_tokens": summary["completion_tokens"],
        "finish_reason": summary["finish_reason"],
        "delivered": summary["delivered"],
        "created_at": summary["created_at"],
    }


def view_session(ledger: Ledger, session_id: str) -> Json | None:
    session = ledger.session(session_id)
    if session is None:
        return None
    turns = [_describe(summary) for summary in ledger.turn_summaries(session_id)]
    return {"id": session_id, "user": session["user"], "opened_at": session["opened_at"], "turns": turns}


def view_sessions(ledger: Ledger, limit: int, after: str | None) -> Json:
    rows = ledger.list_sessions(limit + 1, after)
    page = [{**row, "closed_at": None} for row in rows[:limit]]
    return {"object": "list", "data": page, "has_more": len(rows) > limit}


def view_counts(ledger: Ledger) -> Json:
    counts = ledger.counts()
    excluded = counts["finish_cancelled"]
    return {
        "sessions": counts["sessions"],
        "turns": counts["turns"],
        "by_state": {"waiting": counts["turns"] - excluded, "excluded": excluded},
        "by_reason": {_CANCELLED: excluded} if excluded else {},
    }
