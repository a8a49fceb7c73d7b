"""Several hosts learn: one of them does a thing at a time, and one that was cut off can write nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from openclaw_rl.capture.database import sqlite_url
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.leases import LeaseLost, Leases, view_leases
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import EVERYONE, Verdict

from .conftest import make_turn
from .steps import add_sample


@dataclass
class Host:
    """One learn process, with connections of its own."""

    ledger: LearnLedger
    leases: Leases
    policies: PolicyLedger


@dataclass
class Hosts:
    """Learn processes on one ledger, and the time they share."""

    serve: ServeLedger
    url: str
    now: float = 1000.0
    opened: list[LearnLedger] = field(default_factory=list)

    def join(self, name: str) -> Host:
        ledger = LearnLedger(self.url)
        self.opened.append(ledger)
        leases = Leases(ledger, name, ttl_s=15.0, clock=lambda: self.now)
        leases.join()
        policies = PolicyLedger(self.serve, ledger)
        policies.leads, policies.is_sampling = leases.leads, leases.judges
        policies.holds_scope = leases.holds_scope
        return Host(ledger, leases, policies)


@pytest.fixture
def hosts(
    backend: str, url: str, tmp_path: Path, open_ledger: Callable[[str], ServeLedger]
) -> Iterator[Hosts]:
    found = Hosts(open_ledger(url), url if backend == "postgresql" else sqlite_url(tmp_path / "learn.db"))
    yield found
    for ledger in found.opened:
        ledger.close()


def test_one_holds_a_thing_until_it_runs_out(hosts: Hosts) -> None:
    one, other = hosts.join("one"), hosts.join("other")
    assert one.leases.judges()
    assert not other.leases.judges()
    assert other.leases.leads("user:ann"), "work is shared by scope"
    assert not one.leases.leads("user:ann")
    hosts.now += 10
    one.leases.renew()
    hosts.now += 10  # 20 s after it began; renewed, it has 5 left, and the other's ran out
    assert one.leases.judges()
    assert one.leases.leads("user:ann"), "nobody keeps it alive"
    with pytest.raises(LeaseLost):
        other.leases.renew()


def test_who_was_cut_off_writes_nothing(hosts: Hosts, tmp_path: Path) -> None:
    """The same step is begun by one host, taken over by another, and finished once."""
    cut = hosts.join("cut")
    add_sample(hosts.serve, cut.ledger, make_turn("t1"))
    assert cut.leases.leads(EVERYONE)
    claimed = cut.policies.claim(1, 0, "")
    assert claimed is not None
    hosts.now += 16
    with pytest.raises(LeaseLost):
        cut.policies.publish(claimed.version, {})
    other = hosts.join("other")
    taken_over = other.policies.unfinished()
    assert taken_over is not None
    assert taken_over.version == claimed.version
    assert cut.leases.token < other.leases.token
    for write in (
        lambda: cut.policies.publish(claimed.version, {}),
        lambda: cut.policies.trained(claimed.version, {}),
        lambda: cut.policies.promote(0, "a test"),
        lambda: cut.ledger.settle("t1", Verdict(1, 1.0, "votes")),
        lambda: cut.ledger.flushed(1.0),
        lambda: cut.policies.claim(1, 0, ""),
    ):
        with pytest.raises(LeaseLost):
            write()
    store = PolicyStore(tmp_path / "policies")
    store.fence = cut.leases.confirm
    with pytest.raises(LeaseLost):
        store.write(claimed.version, lambda folder: None, {})
    assert not store.exists(claimed.version)
    store.fence = other.leases.confirm
    store.write(claimed.version, lambda folder: None, {})
    assert store.manifest(claimed.version)["fence"] == other.leases.token
    assert other.policies.publish(claimed.version, {})
    assert other.policies.serving() == claimed.version
    assert other.policies.counts() == {"trained": 1}


def test_a_version_does_not_appear_if_the_lease_runs_out_while_it_is_saved(
    hosts: Hosts, tmp_path: Path
) -> None:
    slow, store = hosts.join("slow"), PolicyStore(tmp_path / "policies")
    store.fence = slow.leases.confirm

    def save(folder: Path) -> None:
        (folder / "adapter").write_text("weights")
        hosts.now += 16

    with pytest.raises(LeaseLost):
        store.write(1, save, {})
    assert not store.exists(1)


def test_started_again_on_the_same_host_it_goes_on_at_once(hosts: Hosts) -> None:
    before = hosts.join("one")
    assert before.leases.judges()
    after = hosts.join("one")
    assert after.leases.judges(), "the process before is dead, whatever time it had left"
    with pytest.raises(LeaseLost):
        before.leases.renew()
    with pytest.raises(LeaseLost):
        before.ledger.flushed(1.0)


def test_what_is_not_worked_on_is_free_for_others(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = hosts.join("one"), hosts.join("other")
    add_sample(hosts.serve, one.ledger, make_turn("t1", scope="user:ann"))
    for scope in ("user:ann", "user:ben"):
        assert one.leases.leads(scope)
    assert one.leases.judges()
    assert one.policies.claim(1, 0, "", 0, "user:ann") is not None
    for name in one.leases._used:
        one.leases._used[name] -= 11.0
    one.leases.renew()
    assert other.leases.leads("user:ben")
    assert not other.leases.leads("user:ann"), "its step was begun, however long that takes"
    assert not other.leases.judges()
    assert other.policies.claim(1, 0, "", 0, "user:ann") is None
    assert other.policies.unfinished() is None


def test_a_scope_given_up_meanwhile_is_not_claimed(hosts: Hosts) -> None:
    one, other = hosts.join("one"), hosts.join("other")
    assert one.leases.leads(EVERYONE)
    add_sample(hosts.serve, one.ledger, make_turn("t1"))
    one.leases._used["scope:everyone"] -= 11.0
    one.leases.renew()
    assert other.leases.leads(EVERYONE)
    assert one.policies.claim(1, 0, "") is None
    assert other.policies.claim(1, 0, "") is not None


def test_leaving_frees_everything(hosts: Hosts) -> None:
    one, other = hosts.join("one"), hosts.join("other")
    assert one.leases.judges()
    assert one.leases.leads(EVERYONE)
    assert view_leases(other.ledger) == [
        {"host": "one", "expires_at": 1015.0, "holds": ["judging", "scope:everyone"]},
        {"host": "other", "expires_at": 1015.0, "holds": []},
    ]
    one.leases.leave()
    assert other.leases.judges()
    assert other.leases.leads(EVERYONE)


def test_a_person_may_choose_a_version_whoever_learns(hosts: Hosts) -> None:
    hosts.join("one")
    hosts.now += 100
    server = PolicyLedger(hosts.serve, ledger := LearnLedger(hosts.url))
    hosts.opened.append(ledger)
    server.promote(0, "a person's choice")
    assert server.serving() == 0
