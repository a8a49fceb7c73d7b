"""The contract of a ledger, the same for SQLite and PostgreSQL."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw_rl.capture import database, inspect, schema
from openclaw_rl.capture import serve_ledger as ledger_module
from openclaw_rl.capture.content import BLOCK_TOKENS
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.learn_ledger import metadata as learn_metadata
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.migrate import LEARN, SERVE, Migrations
from openclaw_rl.capture.serve_ledger import Delivery, ServeLedger, sqlite_url
from openclaw_rl.capture.texts import session_titles
from openclaw_rl.types import Json, SamplingParams, Token, TurnRecord

from .conftest import make_turn

# --- what goes in comes out ------------------------------------------------------------------

#: Any Python string: NUL, lone surrogates and all.
texts = st.text(st.characters(exclude_categories=()), max_size=20)
numbers = st.integers() | st.floats(allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(texts, json_values, max_size=4)
names = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=20)
token_ids = st.integers(0, 2**31 - 1)
logprobs = st.floats(width=32, max_value=0, allow_nan=False)
finish_reasons = st.sampled_from(["stop", "length", "cancelled"])


def ledgers(serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> Ledgers:
    return Ledgers.of(serve_ledger, learn_ledger)


@st.composite
def token_lists(draw: st.DrawFn, policy_version: int) -> list[Token]:
    width = draw(st.integers(0, 4))
    row = st.tuples(
        token_ids, logprobs, logprobs,
        st.lists(token_ids, min_size=width, max_size=width),
        st.lists(logprobs, min_size=width, max_size=width), st.booleans(),
    )  # fmt: skip
    tokens = [
        Token(i, raw, sampled, tuple(top), tuple(values), policy_version, forced)
        for i, raw, sampled, top, values, forced in draw(st.lists(row, max_size=4))
    ]
    if tokens:
        tokens[-1] = replace(tokens[-1], finish_reason=draw(st.none() | finish_reasons))
    return tokens


@st.composite
def any_turns(draw: st.DrawFn) -> TurnRecord:
    version = draw(st.integers(0, 1000))
    prompt = draw(st.lists(token_ids, max_size=5))
    return TurnRecord(
        id=f"t-{uuid4()}", session_id=draw(names), user=draw(names), dialect=draw(names),
        kind=draw(st.sampled_from(["main", "side", "unknown"])),
        messages=draw(st.lists(json_objects, max_size=4)),
        tools=draw(st.none() | st.lists(json_objects, max_size=2)),
        params=draw(json_objects), reply=draw(json_objects),
        prompt_ids=prompt * draw(st.sampled_from([1, BLOCK_TOKENS, 2 * BLOCK_TOKENS])),
        tokens=draw(token_lists(version)),
        sampling=draw(
            st.builds(SamplingParams, st.integers(1, 99), st.floats(0, 2), seed=st.none() | st.integers())
        ),
        policy_version=version, finish_reason=draw(finish_reasons),
        created_at=draw(st.floats(0, 2e9)),
        timings=draw(st.dictionaries(st.sampled_from(["total_s", "queue_s"]), st.floats(0, 1e6))),
        continues=draw(st.none() | names),
        keys=draw(
            st.dictionaries(
                st.sampled_from(["chain", "pair"]), st.binary(min_size=16, max_size=16).map(bytes.hex)
            )
        ),
    )  # fmt: skip


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turn=any_turns())
def test_a_turn_comes_back_exactly(serve_ledger: ServeLedger, turn: TurnRecord) -> None:
    serve_ledger.append([turn])
    assert serve_ledger.load_turn(turn.id) == turn


def test_many_turns_of_all_kinds_leave_a_sound_ledger(serve_ledger: ServeLedger) -> None:
    @settings(max_examples=20, deadline=None, database=None)
    @given(st.lists(any_turns(), max_size=6))
    def append(turns: list[TurnRecord]) -> None:
        serve_ledger.append([*turns, *(Delivery(turn.id, True, 1.0) for turn in turns)])

    append()
    assert serve_ledger.check_integrity() == []


@pytest.mark.parametrize(
    "fault",
    [
        {"tokens": [Token(1, -1, -1, (1,), (-1,), 0), Token(1, -1, -1, (), (), 0)]},
        {"tokens": [Token(1, -1, -1, (), (), policy_version=3)]},
        {"tokens": [Token(1, -1, -1, (), (), 0, finish_reason="stop"), Token(1, -1, -1, (), (), 0)]},
        {"prompt_ids": [2**31]},
        {"prompt_ids": ["one"]},
        {"user": "a\0b"},
        {"user": "\ud800"},
        {"session_id": None},
        {"params": {"x": object()}},
        {"created_at": None},
        {"keys": {"chain": "not hex"}},
    ],
    ids=lambda fault: next(iter(fault)),
)
def test_a_turn_that_cannot_be_kept_exactly_is_refused(serve_ledger: ServeLedger, fault: Json) -> None:
    with pytest.raises(ValueError):
        serve_ledger.append([make_turn("good"), make_turn(**{"turn_id": "bad", **fault})])
    assert serve_ledger.counts()["turns"] == 0
    serve_ledger.append([make_turn("good")])
    assert serve_ledger.load_turn("good") == make_turn("good")


# --- appending -------------------------------------------------------------------------------


def test_appending_twice_changes_nothing(serve_ledger: ServeLedger) -> None:
    first = make_turn("t1", text="first", keys={"chain": "00" * 16})
    serve_ledger.append([first, make_turn("t1", text="second in the same batch")])
    serve_ledger.append([replace(first, reply={"role": "assistant", "content": "later"}), make_turn("t2")])
    assert serve_ledger.load_turn("t1") == first
    assert serve_ledger.counts()["turns"] == 2
    assert serve_ledger.check_integrity() == []


def test_a_group_is_stored_whole_or_not_at_all(serve_ledger: ServeLedger) -> None:
    turns = [make_turn(f"t{i}", f"s{i % 3}") for i in range(700)]
    serve_ledger.append([*turns, *(Delivery(turn.id, True, 5.0) for turn in turns)])
    assert serve_ledger.counts()["turns"] == 700
    assert serve_ledger.counts()["sessions"] == 3
    assert [t["id"] for t in serve_ledger.turn_summaries("s1")] == [f"t{i}" for i in range(1, 700, 3)]
    assert all(t["delivered"] for t in serve_ledger.turn_summaries("s2"))


def test_appending_nothing(serve_ledger: ServeLedger) -> None:
    serve_ledger.append([])
    assert serve_ledger.counts()["turns"] == 0
    assert list(serve_ledger.iter_sessions()) == []


def test_turns_are_numbered_without_gaps_in_the_order_of_commits(
    url: str, open_ledger: Callable[[str], ServeLedger]
) -> None:
    """A reader that asks for "seq > the last one I saw" must not miss a turn."""
    one, two = open_ledger(url), open_ledger(url)
    for i in range(6):
        (one if i % 2 else two).append([make_turn(f"t{i}", f"s{i}")])
    with one.db.connect() as connection:
        rows = connection.execute(
            sa.select(schema.turns.c.seq, schema.turns.c.id).order_by(schema.turns.c.seq)
        )
        assert [tuple(row) for row in rows] == [(i + 1, f"t{i}") for i in range(6)]


def test_two_processes_write_at_the_same_time(url: str, open_ledger: Callable[[str], ServeLedger]) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_turns, args=(url, name)) for name in ("a", "b")]
    for process in writers:
        process.start()
    for process in writers:
        process.join(60)
    assert [process.exitcode for process in writers] == [0, 0]
    serve_ledger = open_ledger(url)
    assert serve_ledger.counts()["turns"] == 60
    assert serve_ledger.counts()["sessions"] == 3
    assert serve_ledger.check_integrity() == []


def _write_turns(url: str, name: str) -> None:
    serve_ledger = ServeLedger(url)
    for i in range(30):
        serve_ledger.append([make_turn(f"{name}{i}", "shared" if i % 2 else name)])
    serve_ledger.close()


# --- stored once -----------------------------------------------------------------------------


def _conversation(num_turns: int, session_id: str) -> list[TurnRecord]:
    """An agent that resends everything with every request; each turn adds about 2 kB."""
    messages: list[Json] = [{"role": "system", "content": "You are helpful. " * 500}]
    prompt: list[int] = list(range(2000))
    turns = []
    for i in range(num_turns):
        messages = [*messages, {"role": "user", "content": f"{session_id} question {i} " + "x" * 1000}]
        prompt = [*prompt, *range(i, i + 100)]
        turn = make_turn(
            f"{session_id}-{i}", session_id, messages=messages, text=f"answer {i} " + "y" * 500,
            prompt_ids=prompt, tools=[{"name": "search", "description": "z" * 3000}],
        )  # fmt: skip
        turns.append(turn)
        messages = [*messages, {"role": "assistant", "content": turn.reply["content"]}]
    return turns


def _stored_bytes(serve_ledger: ServeLedger) -> int:
    """All values in all tables."""
    size = 0
    with serve_ledger.db.connect() as connection:
        for table in schema.metadata.sorted_tables:
            for row in connection.execute(sa.select(table)):
                size += sum(len(v) if isinstance(v, bytes | str) else 8 for v in row if v is not None)
    return size


def _num_rows(serve_ledger: ServeLedger, table: sa.Table) -> int:
    with serve_ledger.db.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0


def test_a_conversation_that_resends_its_history_grows_linearly(serve_ledger: ServeLedger) -> None:
    turns = _conversation(200, "s1")
    sizes = []
    for start in range(0, 200, 50):
        for turn in turns[start : start + 50]:
            serve_ledger.append([turn])
        sizes.append(_stored_bytes(serve_ledger))
    steps = [after - before for before, after in pairwise(sizes)]
    assert max(steps) < 1.05 * min(steps)
    # A turn's own text, ids and hashes: its user message, its reply twice (as delivered, as resent),
    # 100 prompt ids and what is left of a block.
    assert max(steps) / 50 < 5000
    assert _num_rows(serve_ledger, schema.nodes) == 400
    assert _num_rows(serve_ledger, schema.blocks) == len(turns[-1].prompt_ids) // BLOCK_TOKENS
    assert serve_ledger.load_turn(turns[-1].id) == turns[-1]
    assert serve_ledger.load_turn(turns[70].id) == turns[70]


def test_what_sessions_share_is_stored_once_also_after_a_restart(
    url: str, open_ledger: Callable[[str], ServeLedger]
) -> None:
    open_ledger(url).append(_conversation(3, "s1"))
    serve_ledger = open_ledger(url)
    before = _stored_bytes(serve_ledger)
    serve_ledger.append(_conversation(3, "s2"))
    # Neither the system prompt (8.5 kB), the tools (3 kB) nor the shared prompt ids (7 kB) again.
    assert _stored_bytes(serve_ledger) - before < 3 * 5000
    before = _stored_bytes(serve_ledger)
    open_ledger(url).append(_conversation(3, "s2"))
    assert _stored_bytes(serve_ledger) == before


# --- reading ---------------------------------------------------------------------------------


def test_deliveries(serve_ledger: ServeLedger) -> None:
    serve_ledger.append([make_turn("t1"), make_turn("t2"), make_turn("t3"), Delivery("t1", True, 10.0)])
    serve_ledger.append(
        [Delivery("t2", False, 11.0), Delivery("t1", False, 12.0), Delivery("unknown", True, 13.0)]
    )
    assert [t["delivered"] for t in serve_ledger.turn_summaries("s1")] == [True, False, None]
    assert serve_ledger.check_integrity() == []


def test_sessions_page_by_page(serve_ledger: ServeLedger) -> None:
    serve_ledger.append([make_turn(f"t{i}", f"s{i // 2}", created_at=100.0 + i) for i in range(10)])
    first = inspect.view_sessions(serve_ledger, 2, None)
    assert [s["id"] for s in first["data"]] == ["s4", "s3"]
    assert first["has_more"] is True
    second = inspect.view_sessions(serve_ledger, 3, "s3")
    assert [s["id"] for s in second["data"]] == ["s2", "s1", "s0"]
    assert second["has_more"] is False
    assert second["data"][0] == {
        "id": "s2", "user": "alice", "opened_at": 104.0, "closed_at": None, "num_turns": 2,
        "title": "Hi",
    }  # fmt: skip
    assert inspect.view_sessions(serve_ledger, 3, "s0")["data"] == []
    assert inspect.view_sessions(serve_ledger, 3, "no such session")["data"] == []


def test_a_title_is_what_the_person_said(serve_ledger: ServeLedger) -> None:
    """Claude Code's first request ends with a description of its surroundings."""
    said = {"role": "user", "content": "<system-reminder>\nIt is Monday.\n</system-reminder>\nFix the bug"}
    surroundings = {"role": "system", "content": "# Environment"}
    serve_ledger.append(
        [
            make_turn(
                "t1", "s1", messages=[{"role": "system", "content": "You are an agent."}, said, surroundings]
            ),
            make_turn("t2", "s2", messages=[surroundings]),
        ]
    )
    assert session_titles(serve_ledger, ["s1", "s2"]) == {"s1": "Fix the bug", "s2": "# Environment"}


def test_a_session_and_its_turns_in_order(serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> None:
    serve_ledger.append([make_turn("t1"), make_turn("other", "s2"), make_turn("t2", continues="t1")])
    view = inspect.view_session(ledgers(serve_ledger, learn_ledger), "s1")
    assert view is not None
    assert [turn["id"] for turn in view["turns"]] == ["t1", "t2"]
    assert view["turns"][1] == inspect.view_turn(ledgers(serve_ledger, learn_ledger), "t2")
    assert view["turns"][1]["continues"] == "t1"
    assert view["turns"][1]["completion_tokens"] == 3
    assert inspect.view_session(ledgers(serve_ledger, learn_ledger), "none") is None
    assert inspect.view_turn(ledgers(serve_ledger, learn_ledger), "none") is None
    assert serve_ledger.load_turn("none") is None


def test_counts(serve_ledger: ServeLedger, learn_ledger: LearnLedger) -> None:
    empty = inspect.view_counts(ledgers(serve_ledger, learn_ledger))
    assert (empty["turns"], set(empty["by_state"].values()), empty["by_reason"]) == (0, {0}, {})
    serve_ledger.append([make_turn("t1"), make_turn("t2"), make_turn("t3", "s2", finish_reason="cancelled")])
    counts = inspect.view_counts(ledgers(serve_ledger, learn_ledger))
    assert (counts["sessions"], counts["turns"]) == (2, 3)
    assert {s: n for s, n in counts["by_state"].items() if n} == {"waiting": 2, "excluded": 1}
    assert list(counts["by_reason"].values()) == [1]


def test_the_newest_turn_under_a_key_is_found(serve_ledger: ServeLedger) -> None:
    a, b, unused = "aa" * 16, "bb" * 16, "cc" * 16
    serve_ledger.append([make_turn("t1", "s1", keys={"chain": a, "pair": b})])
    serve_ledger.append([make_turn("t2", "s2", keys={"chain": a}), make_turn("t3", "s3", keys={"chain": a})])
    assert serve_ledger.find_by_keys([a, b, unused]) == {a: ("t3", "s3"), b: ("t1", "s1")}
    serve_ledger.append([make_turn("t1", "s1", keys={"chain": a})])
    assert serve_ledger.find_by_keys([a]) == {a: ("t3", "s3")}
    assert serve_ledger.find_by_keys([]) == {}


# --- damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (schema.nodes, "nodes that turns need are missing"),
        (schema.blocks, "blocks that turns need are missing"),
        (schema.bodies, "bodies that turns need are missing"),
        (schema.sessions, "rows of turns lack their session"),
    ],
    ids=str,
)
def test_a_missing_row_is_noticed(serve_ledger: ServeLedger, table: sa.Table, problem: str) -> None:
    turns = _conversation(3, "s1")
    serve_ledger.append(turns)
    assert serve_ledger.check_integrity() == []
    key = next(iter(table.primary_key))
    with serve_ledger.db.begin() as connection:
        victim = sa.select(key).order_by(key).limit(1)
        if table is schema.nodes:  # the beginning of the conversation, which all its turns need
            victim = victim.where(table.c.parent.is_(None))
        connection.execute(table.delete().where(key == victim.scalar_subquery()))
    assert any(problem in line for line in serve_ledger.check_integrity())
    if table is schema.nodes:
        with pytest.raises(LookupError, match="data check"):
            serve_ledger.load_turn(turns[0].id)


def test_altered_content_is_noticed(serve_ledger: ServeLedger) -> None:
    serve_ledger.append(_conversation(2, "s1"))
    with serve_ledger.db.begin() as connection:
        connection.execute(schema.bodies.update().values(body=b'"forged"'))
        connection.execute(schema.blocks.update().values(ids=b"\0" * 1024))
        connection.execute(schema.counters.update().where(schema.counters.c.name == "turns").values(value=9))
    problems = "\n".join(serve_ledger.check_integrity())
    for expected in ("of bodies were altered", "of blocks were altered", "counted as 9, but there are 2"):
        assert expected in problems


# --- schema ----------------------------------------------------------------------------------


def test_a_newer_schema_is_refused(serve_ledger: ServeLedger, url: str) -> None:
    with serve_ledger.db.begin() as connection:
        connection.execute(sa.text("INSERT INTO schema_version (version) VALUES (99)"))
    with pytest.raises(
        ValueError, match=r"newer version of openclaw-rl \(schema 99, this one knows .*upgrade openclaw-rl"
    ):
        ServeLedger(url)


@pytest.fixture
def add_migration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """One more file beside those there are."""

    def add(statements: str) -> None:
        folder = tmp_path / "migrations"
        shutil.copytree(SERVE.folder, folder, dirs_exist_ok=True)
        (folder / f"{int(max(folder.iterdir()).name[:4]) + 1:04}_more.sql").write_text(statements)
        monkeypatch.setattr(ledger_module, "SERVE", Migrations(folder, SERVE.table))

    return add


def test_later_migrations_run_once_and_keep_the_turns(
    url: str, open_ledger: Callable[[str], ServeLedger], add_migration: Callable[[str], None]
) -> None:
    open_ledger(url).append([make_turn("t1")])
    add_migration("CREATE TABLE added (x INTEGER);\nINSERT INTO added SELECT count(*) FROM turns;\n")
    serve_ledger = open_ledger(url)
    open_ledger(url)
    with serve_ledger.db.connect() as connection:
        assert connection.execute(sa.text("SELECT x FROM added")).all() == [(1,)]
    assert serve_ledger.load_turn("t1") == make_turn("t1")


def test_a_migration_that_fails_leaves_nothing_behind(
    url: str,
    open_ledger: Callable[[str], ServeLedger],
    add_migration: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ledger_module, "SERVE", SERVE)
        add_migration("CREATE TABLE half_done (x INTEGER);\nINSERT INTO no_such_table VALUES (1);\n")
        with pytest.raises(ValueError, match="no_such_table"):
            open_ledger(url)
    monkeypatch.undo()
    serve_ledger = open_ledger(url)
    assert "half_done" not in sa.inspect(serve_ledger.db).get_table_names()
    serve_ledger.append([make_turn("t1")])
    assert serve_ledger.load_turn("t1") == make_turn("t1")


@pytest.mark.parametrize(
    ("migrations", "metadata"), [(SERVE, schema.metadata), (LEARN, learn_metadata)], ids=["serve", "learn"]
)
def test_migrations_lead_to_the_declared_tables(
    url: str, open_ledger: Callable[[str], ServeLedger], migrations: Migrations, metadata: sa.MetaData
) -> None:
    db = open_ledger(url).db
    with database.creating(db) as connection:
        migrations.run(connection)
    found = sa.inspect(db)
    for table in metadata.sorted_tables:
        columns = {column["name"]: column["nullable"] for column in found.get_columns(table.name)}
        assert columns == {column.name: column.nullable for column in table.columns}, table.name
        indexes = {
            index["name"] for index in found.get_indexes(table.name) if not index.get("duplicates_constraint")
        }
        assert indexes == {index.name for index in table.indexes}, table.name


def test_processes_that_start_together_make_one_ledger(
    url: str, open_ledger: Callable[[str], ServeLedger]
) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    processes = [context.Process(target=_first_start, args=(url, barrier, i)) for i in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert open_ledger(url).counts()["turns"] == 3


def _first_start(url: str, barrier: Any, number: int) -> None:
    barrier.wait(30)
    serve_ledger = ServeLedger(url)
    serve_ledger.append([make_turn(f"t{number}", f"s{number}")])
    serve_ledger.close()


def test_urls_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown ledger 'mysql'; use sqlite:///PATH or postgresql://"):
        ServeLedger("mysql://localhost/x")
    for scheme in ("postgresql", "postgres"):
        with pytest.raises(ValueError, match="cannot be opened") as caught:
            ServeLedger(f"{scheme}://me:secret@/x?host={tmp_path}")
        assert "secret" not in str(caught.value)
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(ValueError, match=r"folder\.db cannot be opened"):
        ServeLedger(sqlite_url(tmp_path / "folder.db"))
