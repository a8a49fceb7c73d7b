"""What docs/architecture.md promises, checked on a data folder in which nothing writes, and over HTTP."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from contextlib import ExitStack, closing, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import sqlalchemy as sa

from openclaw_rl.capture import schema
from openclaw_rl.capture.learn_ledger import LearnLedger, verdicts
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.samples import policies, samples
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import BASE_VERSION
from tests.soak.actors import run_command
from tests.soak.people import Acknowledged

_ENDED = ("completed", "failed", "cancelled", "incomplete")
#: After 20 wrong ones the server makes an address wait.
_WRONG_KEYS = 15
#: Of so many turns all tokens are read; of the others, that they are there.
_TOKENS = 20


def check_all(
    home: Path, known: Acknowledged, chance: random.Random, sampled: list[int] | None
) -> Counter[str]:
    """While nothing writes; how much there is of what. ``sampled``: the ids of every reply, if known."""
    with ExitStack() as stack:
        serve = stack.enter_context(closing(ServeLedger(sqlite_url(home / "serve.db"))))
        learn = stack.enter_context(closing(LearnLedger(sqlite_url(home / "learn.db"))))
        ledger, kept = PolicyLedger(serve, learn), known.kept()
        assert serve.check_integrity() == []
        _check_turns(serve, learn, known, kept)
        versions = {BASE_VERSION, *(policy.version for policy in ledger.list_policies())}
        for turn_id in chance.sample(kept, min(_TOKENS, len(kept))):
            _check_tokens(serve, turn_id, known.num_tokens[turn_id], versions, sampled)
        _check_responses(serve, known, kept)
        _check_keys(home, known)
        return Counter(
            judged=_judged_once(learn),
            turns=len(known.turns),
            kept=len(kept),
            there=serve.counts()["turns"],
            forgotten=len(known.forgotten),
            excluded=len(known.excluded),
            rated=len(known.rated),
            trained=_check_samples(ledger),
            versions=_check_versions(ledger, PolicyStore(home / "policies")),
            **dict(known.done),
        )


def is_being_written(home: Path) -> bool:
    """Whether a process, which may be frozen, is in the middle of a write to a ledger."""
    for name in ("serve.db", "learn.db"):
        with closing(sqlite3.connect(home / name, timeout=0, isolation_level=None)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
                database.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return True
    return False


def _check_turns(serve: ServeLedger, learn: LearnLedger, known: Acknowledged, kept: list[str]) -> None:
    for turn_id in set(known.forgotten):
        assert serve.turn_summary(turn_id) is None, f"{turn_id} was forgotten and is there"
        assert learn.verdict(turn_id) is None, f"{turn_id} was forgotten and has a verdict"
    gone = [turn_id for turn_id in kept if serve.turn_summary(turn_id) is None]
    assert gone == [], "acknowledged, and gone"
    for turn_ids, kind in ((known.excluded, "exclude"), (known.rated, "feedback")):
        for turn_id in turn_ids.intersection(kept):
            kinds = {event.kind for event in serve.events_of(turn_id)}
            assert kind in kinds, f"{kind} of {turn_id} is gone"


def _check_tokens(
    serve: ServeLedger, turn_id: str, num_tokens: int, versions: set[int], sampled: list[int] | None
) -> None:
    """They are the engine's, with their log-probs, all of one version that there is."""
    turn = serve.load_turn(turn_id)
    assert turn is not None
    ids = [token.id for token in turn.tokens]
    assert len(ids) == num_tokens, f"{turn_id} has {len(ids)} tokens, and the reply said {num_tokens}"
    assert sampled is None or ids == sampled, turn_id
    assert all(token.logprob <= 0 and token.sampled_logprob <= 0 for token in turn.tokens), turn_id
    [version] = {token.policy_version for token in turn.tokens}
    assert version in versions, f"{turn_id} is of version {version}, which nobody knows"


def _check_responses(serve: ServeLedger, known: Acknowledged, kept: list[str]) -> None:
    """Background replies and conversations; what nobody used since a prune may be gone."""
    with known.lock:
        asked = {id for id, at in known.background.items() if not known.may_be_pruned(at)}
        alive = {known.turns[turn_id][0] for turn_id in kept}
        items = {id for name, ids in known.conversations.items() if name in alive for id in ids}
    with serve.db.connect() as connection:
        there = set(connection.scalars(sa.select(schema.background.c.id)))
        stored = set(connection.scalars(sa.select(schema.conversation_items.c.id)))
    lost = {id for id in asked - there if serve.turn_summary(id) is None}
    assert lost == set(), "background replies that were begun, and are gone"
    assert items <= stored, "conversations lack items"


def _judged_once(learn: LearnLedger) -> int:
    with learn.db.connect() as connection:
        query = sa.select(verdicts.c.turn_id).where(verdicts.c.source == "votes")
        judged = Counter(connection.scalars(query))
    assert [turn_id for turn_id, number in judged.items() if number > 1] == [], "judged twice"
    return len(judged)


def _check_samples(ledger: PolicyLedger) -> int:
    """Counts are right, and a claimed sample has its step; how many are trained."""
    with ledger.db.connect() as connection:
        rows = connection.execute(sa.select(samples.c.status, samples.c.reason, samples.c.step)).all()
        versions = {row.version: row.status for row in connection.execute(sa.select(policies))}
    found = Counter(row.status + (f":{row.reason}" if row.reason else "") for row in rows)
    assert ledger.counts() == found
    assert sum(status == "serving" for status in versions.values()) <= 1, versions
    for row in rows:
        if row.status == "claimed":
            assert versions[row.step] in ("training", "candidate"), f"step {row.step}"
        if row.status == "trained":
            assert versions[row.step] in ("serving", "retired"), f"step {row.step}"
    return found["trained"]


def _check_versions(ledger: PolicyLedger, store: PolicyStore) -> int:
    """The one that serves is whole, and learned from no turn twice; how many there are."""
    version, learned = ledger.serving(), Counter[str]()
    assert version == BASE_VERSION or store.problem(version) is None, store.problem(version)
    while version != BASE_VERSION:
        learned.update(store.manifest(version)["samples"] if store.exists(version) else ())
        policy = ledger.policy(version)
        version = policy.parent or BASE_VERSION if policy is not None else BASE_VERSION
    assert [turn_id for turn_id, number in learned.items() if number > 1] == [], "learned from twice"
    return len(ledger.list_policies())


def _check_keys(home: Path, known: Acknowledged) -> None:
    stored = json.loads((home / "keys.json").read_text())
    lost = [name for name, key in known.keys.items() if stored.get(name) != key]
    assert lost == [], "keys that were given out, and are gone"
    assert [name for name in known.removed_keys if name in stored] == [], (
        "keys that were removed, and are there"
    )


def check_backup(home: Path, known: Acknowledged) -> int:
    """The newest one can be restored, and nothing forgotten comes back with it; its turns."""
    if not known.backups:
        return 0
    with TemporaryDirectory(dir=home.parent) as folder:
        restored = Path(folder) / "restored"
        with redirect_stdout(StringIO()):
            run_command("restore", str(known.backups[-1]), "--home", str(restored))
        with closing(ServeLedger(sqlite_url(restored / "serve.db"))) as serve:
            assert serve.check_integrity() == []
            back = [turn_id for turn_id in known.forgotten if serve.turn_summary(turn_id)]
            assert back == [], "forgotten, and back from a backup"
            return int(serve.counts()["turns"])


def check_over_http(url: str, home: Path, known: Acknowledged) -> None:
    """With a server that was started after the last kill."""
    key = json.loads((home / "keys.json").read_text())["default"]
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60) as http:
        for response_id, at in known.background.items():
            answer = http.get(f"/v1/responses/{response_id}")
            if answer.status_code == 404 and known.may_be_pruned(at):
                continue
            assert answer.status_code == 200, f"background {response_id}: {answer.text}"
            assert answer.json()["status"] in _ENDED, answer.text
        alive = {known.turns[turn_id][0] for turn_id in known.kept()}
        for conversation, items in known.conversations.items():
            if conversation in alive:
                answer = http.get(f"/v1/conversations/{conversation}/items", params={"limit": 100})
                there = {item["id"] for item in answer.raise_for_status().json()["data"]}
                assert there >= set(items), f"{conversation} lacks items"
    removed = list(known.removed_keys.values())[-_WRONG_KEYS:]
    for keys, status in ((known.keys.values(), 200), (removed, 401)):
        for key in keys:
            answer = httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == status, answer.text
