"""A power cut while versions, keys, users, receipts and backups are written: the old or the new is there.

A program does all of it once, with every write, sync and rename written down. For many moments a data folder
is then put together as a disk might have it, and opened.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.processes import archive
from openclaw_rl.processes.backups import read_receipts
from openclaw_rl.processes.forgetting import Forgetting
from openclaw_rl.serve.auth import FormerUser, KeyRing
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import BASE_VERSION
from openclaw_rl.users import Users
from tests.conftest import Require
from tests.soak.power import ACKS, Step, acked, after_a_cut, put_back, record

SEED, NUM_CUTS = 20, 40

#: Says before each change what it begins, and after it that this is done.
WRITER = """
import os, sys
from contextlib import contextmanager
from pathlib import Path
import numpy as np
from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.ledgers import Ledgers
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.commands.cli import main
from openclaw_rl.processes.forgetting import Forgetting
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.testing.examples import make_example
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import SamplingParams, Token, TurnRecord, Verdict
from openclaw_rl.users import Users
traced = Path(sys.argv[1])
home = traced / "home"
acks = os.open(traced / "acks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
@contextmanager
def change(*words):
    os.write(acks, ("begin " + " ".join(words) + chr(10)).encode())
    done = list(words)
    yield done
    os.write(acks, ("done " + " ".join(done) + chr(10)).encode())
with change("open"):
    home.mkdir()
    fd = os.open(traced, os.O_RDONLY); os.fsync(fd)
    serve, learn = ServeLedger(sqlite_url(home / "serve.db")), LearnLedger(sqlite_url(home / "learn.db"))
    ledgers = Ledgers.of(serve, learn)
    policies, store = ledgers.policies, PolicyStore(home / "policies")
    keys, users = KeyRing(home / "keys.json"), Users.in_home(home)
    token = Token(5, -0.1, -0.1, (5, 6), (-0.1, -2.0), 0, False, "stop")
    for number in range(5):
        asked = [{"role": "user", "content": f"question {number}"}]
        reply = {"role": "assistant", "content": f"reply {number}"}
        serve.append([TurnRecord(f"t{number}", f"s{number}", "default", "chat", "main", asked, None, {},
            reply, [1, 2, 3], [token], SamplingParams(8), 0, "stop", 1000.0 + number)])
for name in ("ann", "bob"):
    with change("key", name) as said: said.append(keys.add(name))
with change("nokey", "ann"): keys.remove("ann")
for group in ("red", "blue", "none"):
    with change("group", group): users.forget("bob") if group == "none" else users.change("bob", group=group)
queue = LedgerJudgeQueue(serve, learn, 1800)
queue.pull()
def save(folder):
    (folder / "average").mkdir()
    for file in ("adapter_model.safetensors", "average/adapter_model.safetensors", "trainer.pt"):
        (folder / file).write_bytes(os.urandom(3000))
def learn_from(number):
    learn.settle(f"t{number}", Verdict(-1, 0.9, "votes"), unsure=False)
    [(seq, turn_id)] = policies.pending(20)
    turn, verdict = policies.judged(turn_id)
    one = np.ones((1, 1), np.float32)
    policies.settle(seq, turn, verdict, [make_example(turn, -1, np.array([[5]], np.int32), -one, one)])
    made = policies.claim(1, policies.serving(), "", 0)
    store.write(made.version, save, {"version": made.version, "scope": "everyone"})
    policies.trained(made.version, {"loss": 1.0})
    policies.publish(made.version, {"passed": True})
for number in range(2):
    with change("version", str(number + 1)): learn_from(number)
with change("manifest"): store.update_manifest(2, kept=True)
with change("backup", "1"): assert main(["backup", str(traced / "1.tgz"), "--home", str(home)]) == 0
with change("forgotten", "t1"): assert Forgetting(home, ledgers, store).forget("turn", "t1")
with change("forgotten", "t3"): assert Forgetting(home, ledgers, store).forget("turn", "t3")
with change("backup", "2"): assert main(["backup", str(traced / "2.tgz"), "--home", str(home)]) == 0
with change("restored"):
    assert main(["restore", str(traced / "2.tgz"), "--home", str(traced / "restored")]) == 0
"""


@dataclass
class Said:
    """What the program had done, and what it was doing, when the power went."""

    begun: list[str]
    done: list[list[str]] = field(default_factory=list)

    @classmethod
    def until(cls, steps: list[Step]) -> Said:
        lines = [line.split() for line in acked(steps)]
        done = [words for verb, *words in lines if verb == "done"]
        return cls(lines[-1][1:] if lines[-1][0] == "begin" else [], done)

    def of(self, what: str) -> Iterator[list[str]]:
        return (words[1:] for words in self.done if words[0] == what)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory, require: Require) -> list[Step]:
    folder = tmp_path_factory.mktemp("trace")
    recorded = record(require("cc", "build-essential"), folder, WRITER)
    shutil.rmtree(folder / "traced")  # a backup knows where it was made, and restoring looks there
    return recorded


def moments(steps: list[Step]) -> list[int]:
    """Every one after the folder was opened, but for those between two writes to a database."""
    opened = next(i for i, step in enumerate(steps) if step.path == ACKS and b"done open" in step.data)
    return [
        at
        for at in range(opened + 1, len(steps) + 1)
        if at == len(steps) or steps[at].kind != "w" or ".db" not in steps[at].path
    ]


def test_a_cut_leaves_the_old_state_or_the_new(steps: list[Step], tmp_path: Path) -> None:
    """At the moments when something was said to be done, and at some of the others."""
    done = [at for at in moments(steps) if steps[at - 1].data.startswith(b"done")]
    cut_at(steps, [*done, *random.Random(SEED).sample(moments(steps), NUM_CUTS)], tmp_path)


@pytest.mark.soak
def test_a_cut_at_every_moment(steps: list[Step], tmp_path: Path) -> None:
    found = moments(steps)
    print(f"{len(found)} moments, {len(steps)} steps")
    cut_at(steps, found, tmp_path)


def test_the_trace_has_all_of_it(steps: list[Step], tmp_path: Path) -> None:
    """Or the cuts would prove nothing."""
    folder = put_back(after_a_cut(steps, len(steps), random.Random(0)), tmp_path)
    done = Said.until(steps).done
    assert done[-1] == ["restored"]
    kinds = {step.kind for step in steps if ".db" not in step.path}
    assert kinds == {"c", "d", "r", "s", "t", "u", "w"}
    for name in ("home/keys.json", "home/former_users.txt", "home/policies/1/average", "1.tgz", "restored"):
        assert (folder / name).exists(), name


def cut_at(steps: list[Step], found: list[int], tmp_path: Path) -> None:
    for at in found:
        folder = tmp_path / "cut"
        put_back(after_a_cut(steps, at, random.Random(f"{SEED} {at}")), folder)
        try:
            check(folder, Said.until(steps[:at]))
        except Exception as error:
            last = steps[at - 1]
            raise AssertionError(f"cut after step {at}, {last.kind} of {last.path}: {error!r}") from error
        shutil.rmtree(folder)


def check(folder: Path, said: Said) -> None:
    check_people(folder / "home", said)
    with closing(open_ledgers(folder / "home")) as ledgers:
        check_versions(PolicyStore(folder / "home" / "policies"), ledgers, said)
        check_forgotten(folder / "home", ledgers, said)
    check_backups(folder, said)
    check_restored(folder / "restored", said)


def open_ledgers(home: Path) -> Ledgers:
    return Ledgers.of(ServeLedger(sqlite_url(home / "serve.db")), LearnLedger(sqlite_url(home / "learn.db")))


def check_people(home: Path, said: Said) -> None:
    keys, gone = KeyRing(home / "keys.json", create=False), [name for [name] in said.of("nokey")]
    for name, key in said.of("key"):
        assert name in gone or name in said.begun or keys.key_of(name) == key, name
    for name in gone:
        assert keys.key_of(name) is None, name
        with pytest.raises(FormerUser):
            keys.add(name)
    groups = [group for [group] in said.of("group")][-1:] or ["none"]
    allowed = {*groups, *(said.begun[1:] if said.begun[:1] == ["group"] else [])}
    assert str(Users.in_home(home).of("bob").group).lower() in allowed


def check_versions(store: PolicyStore, ledgers: Ledgers, said: Said) -> None:
    serving, forgotten = ledgers.policies.serving(), {"t0", "t1"} & names(said, "forgotten")
    assert serving == BASE_VERSION or store.problem(serving) is None, store.problem(serving)
    published = [int(version) for [version] in said.of("version")]
    assert forgotten or serving >= max(published, default=0)


def names(said: Said, what: str) -> set[str]:
    begun = said.begun[1:] if said.begun[:1] == [what] else []
    return {*begun, *(name for [name] in said.of(what))}


def check_forgotten(home: Path, ledgers: Ledgers, said: Said) -> None:
    for [turn_id] in said.of("forgotten"):
        assert ledgers.serve.turn_summary(turn_id) is None, f"{turn_id} is back"
    Forgetting(home, ledgers, PolicyStore(home / "policies")).resume()
    receipts = read_receipts(home)
    assert all(receipt["state"] == "done" for receipt in receipts)
    assert len(receipts) >= len(list(said.of("forgotten")))
    for turn_id in (turn_id for receipt in receipts for turn_id in receipt["erased"]["turns"]):
        assert ledgers.serve.turn_summary(turn_id) is None, f"{turn_id} has a receipt and is there"


def check_backups(folder: Path, said: Said) -> None:
    for number in ("1", "2"):
        file, unpacked = folder / f"{number}.tgz", folder / f"unpacked{number}"
        if [number] in said.of("backup"):
            assert file.exists(), file.name
        if file.exists():
            archive.unpack(file, unpacked)
            with closing(ServeLedger(sqlite_url(unpacked / "serve.db"))) as serve:
                back = [turn_id for [turn_id] in said.of("forgotten") if serve.turn_summary(turn_id)]
                assert back == [], f"{back} in {file.name}"
            listed = json.loads((folder / "home" / "backups.json").read_text())
            assert file.name in [Path(entry["file"]).name for entry in listed]


def check_restored(restored: Path, said: Said) -> None:
    """The databases come last: where they are, all is."""
    if (restored / "serve.db").exists() or ["restored"] in said.done:
        with closing(open_ledgers(restored)) as ledgers:
            assert ledgers.serve.check_integrity() == []
            assert ledgers.serve.counts()["turns"] == 3
            serving = ledgers.policies.serving()
            assert serving == BASE_VERSION or PolicyStore(restored / "policies").problem(serving) is None
        assert KeyRing(restored / "keys.json", create=False).users == ["bob", "default"]
