"""The ledger as the API shows it: sessions, turns and counts.

A turn's state is derived, never stored: from the turn itself, its events, and its verdict. ``user`` limits a
view to one user's data; None sees everything.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict

from openclaw_rl.capture import events
from openclaw_rl.capture.events import StoredEvent
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.samples import TRAINED
from openclaw_rl.capture.schema import FACTS
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.capture.steps import CLAIMED
from openclaw_rl.capture.texts import session_titles, turn_texts
from openclaw_rl.capture.unjudged import COUNTERS, why_left_out
from openclaw_rl.capture.versions import READY
from openclaw_rl.types import BASE_VERSION, EVERYONE, Json, Policy, Scope, Verdict

#: Why a turn waits.
_NOTHING_FOLLOWED = "nothing has followed the reply yet"
_IN_QUEUE = "waiting for the judge"
_FAILED = "the judge failed and will try again"
_NO_SAMPLE_YET = "judged; what it teaches is worked out next"
_NEXT_STEP = "waiting for a step, or in the one being made"


def view_turn(ledgers: Ledgers, turn_id: str, user: str | None = None) -> Json | None:
    summary = ledgers.serve.turn_summary(turn_id)
    if summary is None or user not in (None, summary["user"]):
        return None
    return _describe(ledgers, summary, _is_excluded(ledgers.serve, summary))


def _is_excluded(ledger: ServeLedger, summary: Json) -> bool:
    """Whether a user excluded the turn's whole session."""
    return bool(events.excluded_sessions(ledger.db, [summary["session"]]))


def _describe(ledgers: Ledgers, summary: Json, session_excluded: bool) -> Json:
    happened = ledgers.serve.events_of(summary["id"])
    known = {event.kind: event for event in reversed(happened)}
    verdict, lesson = ledgers.learn.verdict(summary["id"]), ledgers.policies.of_turn(summary["id"])
    state, reason = _state(summary, known, verdict, ledgers.learn.task(summary["id"]), lesson)
    following = events.reaction(happened)
    return {
        "id": summary["id"],
        "session_id": summary["session_id"],
        "user": summary["user"],
        # A turn that the conversation continues belongs to it, however it was classified at first.
        "kind": "main" if following else summary["kind"],
        "state": state,
        "reason": reason,
        # A user's decision, even before the learn process has imported it.
        "excluded": events.is_excluded(happened, session_excluded),
        "continues": summary["continues"],
        "next_state": following.messages if following else None,
        "verdict": _view_verdict(verdict),
        "step": lesson["step"] if lesson else None,
        "policy_version": summary["policy_version"],
        "prompt_tokens": summary["prompt_tokens"],
        "completion_tokens": summary["completion_tokens"],
        "finish_reason": summary["finish_reason"],
        "delivered": summary["delivered"],
        "created_at": summary["created_at"],
        **{name: summary[name] for name in FACTS},
    }


def _state(
    summary: Json,
    known: dict[str, StoredEvent],
    verdict: Verdict | None,
    task: Json | None,
    lesson: Json | None,
) -> tuple[str, str | None]:
    if verdict is not None:
        if lesson is not None and lesson["status"] == TRAINED:
            return "trained", None
        if not verdict.trainable:
            return "excluded", verdict.reason
        if verdict.source == events.EXCLUDE and (lesson is None or lesson["status"] != CLAIMED):
            return "excluded", verdict.reason
        if lesson is None:
            return "judged", _NO_SAMPLE_YET
        if lesson["status"] == READY:
            return "sampled", lesson["reason"]
        if lesson["status"] == CLAIMED:
            return "sampled", f"version {lesson['step']} is being made from it"
        return "excluded", lesson["reason"]
    reason = why_left_out(summary["kind"], summary["finish_reason"], summary["secrets"], known)
    if reason is not None:
        return "excluded", reason
    if task and task["attempts"]:
        return "unjudged", f"the judge failed {task['attempts']} times, last: {task['error']}"
    ready = (task and task["ready"]) or any(kind in known for kind in events.READY_KINDS)
    return "waiting", _IN_QUEUE if ready else _NOTHING_FOLLOWED


def _view_verdict(verdict: Verdict | None) -> Json | None:
    if verdict is None:
        return None
    return {name: value for name, value in asdict(verdict).items() if name != "trainable"}


def view_session(
    ledgers: Ledgers,
    session_id: str,
    user: str | None = None,
    limit: int | None = None,
    after: str | None = None,
    text: bool = False,
) -> Json | None:
    """A session with its turns in order; ``limit`` and ``after`` (a turn's id) select a page."""
    ledger = ledgers.serve
    session = ledger.session(session_id)
    if session is None or user not in (None, session["user"]):
        return None
    summaries = ledger.turn_summaries(session_id)
    ids = [summary["id"] for summary in summaries]
    start = ids.index(after) + 1 if after in ids else 0
    page = summaries[start:] if limit is None else summaries[start : start + limit]
    excluded = bool(summaries) and _is_excluded(ledger, summaries[0])
    turns = [_describe(ledgers, summary, excluded) for summary in page]
    if text:
        said = turn_texts(ledger, [turn["id"] for turn in turns])
        turns = [{**turn, **said.get(turn["id"], {})} for turn in turns]
    return {
        "id": session_id,
        "user": session["user"],
        "opened_at": session["opened_at"],
        "closed_at": closed_at(ledger, ids[-1]) if ids else None,
        "num_turns": len(ids),
        "excluded": excluded,
        "turns": turns,
        "has_more": start + len(page) < len(ids),
    }


def closed_at(ledger: ServeLedger, last_turn_id: str) -> float | None:
    """When the session was closed; a later request opens it again."""
    return next((e.at for e in ledger.events_of(last_turn_id) if e.kind == events.CLOSED), None)


def view_sessions(
    ledger: ServeLedger,
    limit: int,
    after: str | None,
    user: str | None = None,
    only: Sequence[str] | None = None,
) -> Json:
    """Newest first; ``only`` are the ids that a search found, in its order, of which ``after`` is one."""
    if only is None:
        rows = ledger.list_sessions(limit + 1, after, user)
    else:
        start = only.index(after) + 1 if after in only else 0
        rows = ledger.list_sessions(limit + 1, None, user, only[start : start + limit + 1])
    titles = session_titles(ledger, [row["id"] for row in rows[:limit]])
    page = []
    for row in rows[:limit]:
        last = row.pop("last_turn_id")
        closed = closed_at(ledger, last) if last else None
        page.append({**row, "closed_at": closed, "title": titles.get(row["id"], "")})
    return {"object": "list", "data": page, "has_more": len(rows) > limit}


def view_counts(ledgers: Ledgers) -> Json:
    """The funnel: every turn is in exactly one state. Constant cost."""
    stored, judged, lessons = (
        ledgers.serve.counts(),
        ledgers.learn.counts(time.time()),
        ledgers.policies.counts(),
    )
    left_out = {name.partition(":")[2]: n for name, n in lessons.items() if name.startswith("excluded:")}
    reasons = Counter(
        {
            **{reason: stored[counter] for reason, counter in COUNTERS.items()},
            **{name.partition(":")[2]: n for name, n in judged.items() if name.startswith("excluded:")},
        }
    )
    reasons.update(left_out)
    sampled, trained = lessons[READY] + lessons[CLAIMED], lessons[TRAINED]
    states = {
        # Two databases are counted one after the other: turns sampled in between are in both.
        "judged": max(0, judged["judged"] - sampled - trained - sum(left_out.values())),
        "unjudged": judged["unjudged"],
        "sampled": sampled,
        "trained": trained,
        "excluded": sum(reasons.values()),
    }
    states = {"waiting": max(0, stored["turns"] - sum(states.values())), **states}
    return {
        "sessions": stored["sessions"],
        "turns": stored["turns"],
        "by_state": states,
        "stages": view_stages(stored["turns"], states, reasons, max(0, judged["queue"] - judged["unjudged"])),
        "by_reason": {reason: number for reason, number in reasons.items() if number},
        "unread": max(0, stored["last_event"] - ledgers.learn.cursors()[1]),
        "judge_queue": judged["queue"],
        "judge_due": judged["due"],
    }


def view_stages(turns: int, states: dict[str, int], reasons: Counter[str], queue: int) -> list[Json]:
    """From seen to trained: how many turns reached each stage, and why the others did not, or not yet."""
    unpaired = {reason: reasons[reason] for reason in COUNTERS}
    unpaired[_NOTHING_FOLLOWED] = max(0, states["waiting"] - queue)
    unjudged = {_IN_QUEUE: min(queue, states["waiting"]), _FAILED: states["unjudged"]}
    useless = {reason: n for reason, n in reasons.items() if reason not in unpaired}
    useless[_NO_SAMPLE_YET] = max(0, states["judged"])
    lost = (("paired", unpaired), ("judged", unjudged), ("usable", useless),
            ("trained", {_NEXT_STEP: states["sampled"]}))  # fmt: skip
    stages: list[Json] = [{"name": "seen", "turns": turns, "lost": {}}]
    for name, why in lost:
        left = max(0, stages[-1]["turns"] - sum(why.values()))
        stages.append({"name": name, "turns": left, "lost": {reason: n for reason, n in why.items() if n}})
    return stages


def view_policies(
    policy_ledger: PolicyLedger,
    serving: Callable[[Scope], int],
    scope: Scope | None = EVERYONE,
    limit: int = 1000,
) -> Json:
    """A scope's versions, or all, newest first; ``serving`` returns what the engine actually serves."""
    rows = [view_policy(policy) for policy in policy_ledger.list_policies(limit, scope)]
    for row in rows:
        is_served = row["version"] == serving(row["scope"])
        if (row["status"] == "serving") != is_served:
            row["status"] = "serving" if is_served else "retired"
    base: Json = dict.fromkeys(("parent", "gate", "metrics", "num_samples", "created_at", "published_at"))
    base["scope"] = scope or EVERYONE
    status = "serving" if serving(base["scope"]) == BASE_VERSION else "retired"
    return {"object": "list", "data": [*rows, {"version": BASE_VERSION, "status": status, **base}]}


def view_policy(policy: Policy) -> Json:
    return asdict(policy)


def view_learning(policy_ledger: PolicyLedger, scope: Scope = EVERYONE, everybodys: bool = True) -> Json:
    """Progress toward the next step, and the last step's result.

    The stage is that of any scope's step with ``everybodys``, otherwise of this scope's only.
    """
    unfinished = policy_ledger.unfinished()
    if unfinished is not None and not (everybodys or unfinished.scope == scope):
        unfinished = None
    last = next((p for p in policy_ledger.list_policies(2, scope) if "loss" in p.metrics), None)
    return {
        "samples": policy_ledger.waiting(scope)[0],
        "stage": None if unfinished is None else unfinished.status,
        "flushing": policy_ledger.flush_requested_at() is not None,
        "last_step": None if last is None else view_policy(last),
    }
