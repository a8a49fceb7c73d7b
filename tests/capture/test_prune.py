"""Retention removes what it says and nothing else, also beside a running server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.prune import prune
from openclaw_rl.capture.serve_ledger import Delivery, ServeLedger, sqlite_url
from openclaw_rl.commands.cli import main
from openclaw_rl.types import Json, TurnRecord

from .conftest import make_turn

DAY = 86400.0
SYSTEM = {"role": "system", "content": "You are helpful. " * 100}
OpenLedger = Callable[[str], ServeLedger]


def conversation(session_id: str, age_days: float, num_turns: int = 3, text: str = "") -> list[TurnRecord]:
    """A session whose last turn is so old; all of them share a system prompt and its token ids."""
    messages: list[Json] = [SYSTEM]
    turns = []
    for i in range(num_turns):
        messages = [*messages, {"role": "user", "content": f"{text or session_id} {i} " + "x" * 500}]
        key = f"{hash((session_id, i)) & (2**128 - 1):032x}"
        turns.append(
            make_turn(
                f"{session_id}-{i}", session_id, messages=messages, text=f"{text or session_id} answer {i}",
                prompt_ids=[*range(1000), *[hash(text or session_id) % 9999] * 300 * (i + 1)],
                created_at=time.time() - age_days * DAY - (num_turns - i) * 60, keys={"chain": key},
            )
        )  # fmt: skip
        messages = [*messages, turns[-1].reply]
    return turns


def num_rows(serve_ledger: ServeLedger) -> dict[str, int]:
    with serve_ledger.db.connect() as connection:
        return {
            table.name: connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
            for table in schema.metadata.sorted_tables
        }


def assert_holds(serve_ledger: ServeLedger, turns: list[TurnRecord]) -> None:
    """Exactly these turns, each as it was, and a sound ledger."""
    for turn in turns:
        assert serve_ledger.load_turn(turn.id) == turn
    assert serve_ledger.counts()["turns"] == len(turns)
    assert serve_ledger.check_integrity() == []


# --- what goes and what stays ----------------------------------------------------------------


def test_old_sessions_go_with_everything_only_they_needed(
    serve_ledger: ServeLedger, new_url: Callable[[str], str], open_ledger: OpenLedger
) -> None:
    old, new = conversation("old", 40), conversation("new", 20)
    serve_ledger.append([*old, *new, *(Delivery(turn.id, True, 1.0) for turn in [*old, *new])])
    report = prune(serve_ledger, older_than_s=30 * DAY)
    assert (report.sessions, report.turns) == (1, 3)
    assert_holds(serve_ledger, new)
    assert serve_ledger.session("old") is None
    assert serve_ledger.find_by_keys([turn.keys["chain"] for turn in old]) == {}
    assert len(serve_ledger.find_by_keys([turn.keys["chain"] for turn in new])) == 3
    # No trace is left: the same rows as in a ledger that never saw the old session.
    fresh = open_ledger(new_url("sqlite"))
    fresh.append([*new, *(Delivery(turn.id, True, 1.0) for turn in new)])
    assert num_rows(serve_ledger) == num_rows(fresh)


def test_pruning_twice_removes_nothing_more(serve_ledger: ServeLedger) -> None:
    serve_ledger.append([*conversation("old", 40), *conversation("new", 20)])
    prune(serve_ledger, older_than_s=30 * DAY)
    again = prune(serve_ledger, older_than_s=30 * DAY)
    assert (again.sessions, again.turns, again.content_rows, again.bytes) == (0, 0, 0, 0)


def test_a_session_with_one_recent_turn_stays_whole(serve_ledger: ServeLedger) -> None:
    turns = [*conversation("s", 40), make_turn("recent", "s", created_at=time.time() - 2 * DAY)]
    serve_ledger.append(turns)
    assert prune(serve_ledger, older_than_s=30 * DAY).sessions == 0
    assert_holds(serve_ledger, turns)


def test_open_sessions_stay_whatever_the_limits_say(serve_ledger: ServeLedger) -> None:
    open_, closed = conversation("open", 0.5), conversation("closed", 2)
    serve_ledger.append([*open_, *closed])
    report = prune(serve_ledger, older_than_s=0, max_bytes=0)
    assert report.sessions == 1
    assert_holds(serve_ledger, open_)


def test_what_a_later_stage_still_needs_stays(serve_ledger: ServeLedger) -> None:
    sessions = {name: conversation(name, 40) for name in ("a", "b", "c")}
    serve_ledger.append([turn for turns in sessions.values() for turn in turns])
    asked: list[str] = []

    def not_consumed(_: ServeLedger, session_ids: Any) -> set[str]:
        asked.extend(session_ids)
        return {"b"}

    report = prune(serve_ledger, older_than_s=30 * DAY, max_bytes=0, keep=[not_consumed])
    assert sorted(asked) == ["a", "b", "c"]
    assert report.sessions == 2
    assert_holds(serve_ledger, sessions["b"])


def test_rules_are_asked_only_about_sessions_that_may_go(serve_ledger: ServeLedger) -> None:
    serve_ledger.append(conversation("old", 40) + conversation("young", 20))
    asked: list[str] = []

    def note(ledger: ServeLedger, session_ids: Sequence[str]) -> list[str]:
        asked.extend(session_ids)
        return []

    assert prune(serve_ledger, older_than_s=30 * DAY, keep=[note]).sessions == 1
    assert asked == ["old"]


def test_the_oldest_go_until_the_rest_fits(serve_ledger: ServeLedger) -> None:
    sessions = [conversation(f"s{i}", 60 - i) for i in range(30)]
    serve_ledger.append([turn for turns in sessions for turn in turns])
    whole = prune(serve_ledger, older_than_s=1000 * DAY, dry_run=True).bytes_left
    report = prune(serve_ledger, max_bytes=whole // 2)
    assert 0.35 * whole < report.bytes_left <= whole // 2
    assert 10 <= report.sessions <= 20
    assert_holds(serve_ledger, [turn for turns in sessions[report.sessions :] for turn in turns])
    assert prune(serve_ledger, older_than_s=1000 * DAY, dry_run=True).bytes_left == report.bytes_left


@pytest.mark.parametrize("limits", [{"older_than_s": 45 * DAY}, {"max_bytes": 40_000}], ids=str)
def test_a_dry_run_says_what_a_real_one_does(serve_ledger: ServeLedger, limits: Json) -> None:
    turns = [turn for i in range(20) for turn in conversation(f"s{i}", 40 + i)]
    serve_ledger.append(turns)
    expected = prune(serve_ledger, **limits, dry_run=True)
    assert expected.sessions > 0
    assert_holds(serve_ledger, turns)
    report = prune(serve_ledger, **limits)
    report.file_bytes_freed = 0
    assert report == expected


def test_content_of_an_interrupted_prune_is_removed_by_the_next(serve_ledger: ServeLedger) -> None:
    new = conversation("new", 20)
    serve_ledger.append([*conversation("old", 40), *new])
    with serve_ledger.db.begin() as connection:  # as if the power went after the sessions were removed
        old = sa.select(schema.sessions.c.seq).where(schema.sessions.c.id == "old").scalar_subquery()
        seqs = sa.select(schema.turns.c.seq).where(schema.turns.c.session == old)
        connection.execute(schema.turn_keys.delete().where(schema.turn_keys.c.turn.in_(seqs)))
        connection.execute(schema.turns.delete().where(schema.turns.c.session == old))
        connection.execute(schema.sessions.delete().where(schema.sessions.c.id == "old"))
        for name, number in (("turns", 3), ("sessions", 1)):
            connection.execute(
                schema.counters.update().where(schema.counters.c.name == name).values(value=number)
            )
    assert serve_ledger.check_integrity() == []
    report = prune(serve_ledger, older_than_s=1000 * DAY)
    assert (report.sessions, report.content_rows > 5) == (0, True)
    assert_holds(serve_ledger, new)


def test_limits_are_needed(serve_ledger: ServeLedger) -> None:
    with pytest.raises(ValueError, match="--older-than"):
        prune(serve_ledger)


def test_sqlites_file_shrinks(tmp_path: Path, open_ledger: OpenLedger) -> None:
    file = tmp_path / "x.db"
    serve_ledger = open_ledger(sqlite_url(file))
    new = conversation("new", 20)
    serve_ledger.append([turn for i in range(50) for turn in conversation(f"s{i}", 40, 10)] + new)
    serve_ledger.checkpoint()
    before = file.stat().st_size
    report = prune(serve_ledger, older_than_s=30 * DAY)
    assert before - file.stat().st_size == report.file_bytes_freed
    assert file.stat().st_size < before / 4
    assert_holds(serve_ledger, new)


def test_the_command(tmp_path: Path, open_ledger: OpenLedger, capsys: pytest.CaptureFixture[str]) -> None:
    url = sqlite_url(tmp_path / "x.db")
    open_ledger(url).append([*conversation("old", 40), *conversation("new", 20)])
    common = ["data", "prune", "--home", str(tmp_path), "--ledger-url", url]
    assert main([*common, "--older-than", "30", "--dry-run"]) == 0
    assert "would remove 1 sessions with 3 turns" in capsys.readouterr().out
    assert main([*common, "--max-gb", "1"]) == 0
    assert "removed 0 sessions" in capsys.readouterr().out
    assert main([*common, "--older-than", "30"]) == 0
    assert "removed 1 sessions with 3 turns" in capsys.readouterr().out
    assert main(common) == 2
    assert open_ledger(url).counts()["turns"] == 3


# --- beside a running server -----------------------------------------------------------------


def test_a_server_stores_again_what_was_pruned(url: str, open_ledger: OpenLedger) -> None:
    """Its writer remembers having stored the content that a prune in another process removes."""
    server, pruner = open_ledger(url), open_ledger(url)
    server.append(conversation("old", 40, text="same words"))
    prune(pruner, older_than_s=30 * DAY)
    assert num_rows(server)["bodies"] == 0
    again = conversation("new", 0, text="same words")
    server.append(again)
    assert_holds(server, again)


@pytest.mark.parametrize("moment", ["after the marking", "before the marking"])
def test_content_that_is_needed_again_during_a_prune_stays(
    url: str, open_ledger: OpenLedger, moment: str
) -> None:
    """A client resends an old conversation just when nothing refers to it any more."""
    server, pruner = open_ledger(url), open_ledger(url)
    server.append(conversation("old", 40, text="same words"))
    again = conversation("new", 0, text="same words")
    statements: list[str] = []

    @sa.event.listens_for(pruner.db, "after_cursor_execute")
    def resend(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement[:20])
        # The plan marks with four temporary tables, then the sweep does; it ends with a list of blocks.
        marking = statements.count("\nCREATE TEMPORARY TA") == 5
        marked = statement.startswith("SELECT blocks.hash")
        if not sent and (marking if moment == "before the marking" else marked):
            sent.append(True)
            server.append(again)

    sent: list[bool] = []
    prune(pruner, older_than_s=30 * DAY)
    assert sent
    assert_holds(server, again)


def test_a_session_that_goes_on_while_it_is_being_pruned_stays(url: str, open_ledger: OpenLedger) -> None:
    server, pruner = open_ledger(url), open_ledger(url)
    old = conversation("old", 40)
    server.append([*old, *conversation("other", 40)])
    more = make_turn("more", "old", created_at=time.time())

    def keep(_: ServeLedger, __: Any) -> set[str]:
        server.append([more])  # between choosing and removing
        return set()

    report = prune(pruner, older_than_s=30 * DAY, keep=[keep])
    assert report.sessions == 1
    assert_holds(server, [*old, more])


@pytest.mark.slow
def test_a_busy_server_and_prunes_do_not_disturb_each_other(url: str, open_ledger: OpenLedger) -> None:
    """Old and new conversations of the same few words, written while prune after prune runs."""
    server, pruner = open_ledger(url), open_ledger(url)
    server.append([turn for i in range(40) for turn in conversation(f"old{i}", 40, text=f"words {i % 8}")])
    new: list[TurnRecord] = []
    running: int | None = None
    during: list[int] = []
    """For each append that began and ended while a prune was running, the prune's number."""
    done = threading.Event()

    def serve() -> None:
        number = 0
        while not done.is_set():
            number += 1
            turns = conversation(f"new{number}", 0, 2, text=f"words {number % 8}")
            old = conversation(f"more{number}", 40, 2, text=f"words {number % 8}")
            before = running
            server.append([*turns, *old])
            if before is not None and before == running:
                during.append(before)
            new.extend(turns)
            time.sleep(0.005)

    thread = threading.Thread(target=serve)
    thread.start()
    removed: list[int] = []
    give_up_at = time.monotonic() + 120
    try:
        while len(removed) < 6 or sum(removed) <= 40 or len(new) <= 10 or len(during) < 3:
            assert time.monotonic() < give_up_at, f"{removed=}, {len(new)=}, {during=}"
            running = len(removed)
            report = prune(pruner, older_than_s=30 * DAY)
            running = None
            removed.append(report.sessions)
    finally:
        done.set()
        thread.join(60)
    assert not thread.is_alive()
    prune(pruner, older_than_s=30 * DAY)
    assert_holds(server, new)
