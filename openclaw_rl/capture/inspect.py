"""The ledger as the outside sees it: sessions, turns and counts in the API's words.

A turn's state is derived, never stored: from the turn itself, what became known of it, and its
verdict. ``user`` limits a view to one person's own; None sees everything.
"""

from __future__ import annotations

import time
from dataclasses import asdict

from openclaw_rl.capture import events
from openclaw_rl.capture.events import StoredEvent
from openclaw_rl.capture.journal import Journal
from openclaw_rl.capture.ledger import Ledger
from openclaw_rl.types import Json, Verdict

#: Why a turn that will not train does not, in words for a person.
CANCELLED = "the reply was never completed: the client left, or the engine failed"
RETRIED = "the reply never arrived and was asked for again"
SIDE = "a side request (heartbeat, summary, title …), not part of the conversation"
#: Why a turn waits.
_NOTHING_FOLLOWED = "nothing has followed the reply yet"
_IN_QUEUE = "waiting for the judge"


def view_turn(ledger: Ledger, journal: Journal, turn_id: str, user: str | None = None) -> Json | None:
    summary = ledger.turn_summary(turn_id)
    if summary is None or user not in (None, summary["user"]):
        return None
    return _describe(ledger, journal, summary)


def _describe(ledger: Ledger, journal: Journal, summary: Json) -> Json:
    known = {event.kind: event for event in reversed(ledger.events_of(summary["id"]))}
    verdict = journal.verdict(summary["id"])
    state, reason = _state(summary, known, verdict, journal.task(summary["id"]))
    following = known.get(events.NEXT_STATE)
    return {
        "id": summary["id"],
        "session_id": summary["session_id"],
        "user": summary["user"],
        # Whatever the main line continues belongs to it, however it looked when it came.
        "kind": "main" if following else summary["kind"],
        "state": state,
        "reason": reason,
        "continues": summary["continues"],
        "next_state": following.messages if following else None,
        "verdict": _view_verdict(verdict),
        "policy_version": summary["policy_version"],
        "prompt_tokens": summary["prompt_tokens"],
        "completion_tokens": summary["completion_tokens"],
        "finish_reason": summary["finish_reason"],
        "delivered": summary["delivered"],
        "created_at": summary["created_at"],
    }


def _state(
    summary: Json, known: dict[str, StoredEvent], verdict: Verdict | None, task: Json | None
) -> tuple[str, str | None]:
    if verdict is not None:
        return ("judged", None) if verdict.trainable else ("excluded", verdict.reason)
    if summary["finish_reason"] == "cancelled":
        return "excluded", CANCELLED
    if events.RETRIED in known:
        return "excluded", RETRIED
    if summary["kind"] == "side" and events.NEXT_STATE not in known:
        return "excluded", SIDE
    if task and task["attempts"]:
        return "unjudged", f"the judge failed {task['attempts']} times, last: {task['error']}"
    ready = (task and task["ready"]) or any(kind in known for kind in events.READY_KINDS)
    return "waiting", _IN_QUEUE if ready else _NOTHING_FOLLOWED


def _view_verdict(verdict: Verdict | None) -> Json | None:
    if verdict is None:
        return None
    return {name: value for name, value in asdict(verdict).items() if name != "trainable"}


def view_session(ledger: Ledger, journal: Journal, session_id: str, user: str | None = None) -> Json | None:
    session = ledger.session(session_id)
    if session is None or user not in (None, session["user"]):
        return None
    turns = [_describe(ledger, journal, summary) for summary in ledger.turn_summaries(session_id)]
    return {
        "id": session_id,
        "user": session["user"],
        "opened_at": session["opened_at"],
        "closed_at": closed_at(ledger, turns[-1]["id"]) if turns else None,
        "turns": turns,
    }


def closed_at(ledger: Ledger, last_turn_id: str) -> float | None:
    """When the session was closed; a request after that opens it again."""
    return next((e.at for e in ledger.events_of(last_turn_id) if e.kind == events.CLOSED), None)


def view_sessions(ledger: Ledger, limit: int, after: str | None, user: str | None = None) -> Json:
    rows = ledger.list_sessions(limit + 1, after, user)
    page = []
    for row in rows[:limit]:
        last = row.pop("last_turn_id")
        page.append({**row, "closed_at": closed_at(ledger, last) if last else None})
    return {"object": "list", "data": page, "has_more": len(rows) > limit}


def view_counts(ledger: Ledger, journal: Journal) -> Json:
    """The funnel: every turn is in exactly one state. Constant cost."""
    stored, judged = ledger.counts(), journal.counts(time.time())
    reasons = {
        CANCELLED: stored["finish_cancelled"],
        RETRIED: stored[f"event_{events.RETRIED}"],
        SIDE: stored["side"],
        **{name.removeprefix("excluded:"): n for name, n in judged.items() if name.startswith("excluded:")},
    }
    excluded = sum(reasons.values())
    states = {"judged": judged["judged"], "unjudged": judged["unjudged"], "excluded": excluded}
    return {
        "sessions": stored["sessions"],
        "turns": stored["turns"],
        "by_state": {"waiting": max(0, stored["turns"] - sum(states.values())), **states},
        "by_reason": {reason: number for reason, number in reasons.items() if number},
        "judge_queue": judged["queue"],
        "judge_due": judged["due"],
    }
