"""Hosts as network namespaces, each with a line to the database and one to its clients; either can be cut."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from tests.capture.conftest import Postgres, run_unprivileged

Require = Callable[[str, str], Path]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass(frozen=True)
class Host:
    """The n-th; this process is its database's host and its clients'."""

    name: str
    number: int

    @property
    def within(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"10.214.{self.number}.2"

    @property
    def database(self) -> str:
        """Where it finds the database."""
        return f"10.213.{self.number}.1"

    @property
    def _lines(self) -> dict[str, str]:
        return {"db": f"ocdb{self.number}", "net": f"ocnet{self.number}"}

    def create(self) -> None:
        ip("netns", "add", self.name)
        for (inside, outside), net in zip(self._lines.items(), ("10.213", "10.214"), strict=True):
            ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", self.name)
            ip("addr", "add", f"{net}.{self.number}.1/30", "dev", outside)
            ip("link", "set", outside, "up")
            ip("-n", self.name, "addr", "add", f"{net}.{self.number}.2/30", "dev", inside)
            ip("-n", self.name, "link", "set", inside, "up")
        ip("-n", self.name, "link", "set", "lo", "up")

    def cut(self) -> None:
        """Nothing it sends reaches the database any more, and nobody is told so."""
        ip("link", "set", self._lines["db"], "down")

    def mend(self) -> None:
        ip("link", "set", self._lines["db"], "up")

    def cut_clients(self) -> None:
        """Nobody reaches it any more, and its replies get lost.

        Inside: the way to it must stay here, or requests would go wherever the default route leads.
        """
        ip("-n", self.name, "link", "set", "net", "down")

    def mend_clients(self) -> None:
        ip("-n", self.name, "link", "set", "net", "up")

    def remove(self) -> None:
        for outside in self._lines.values():
            subprocess.run(["ip", "link", "del", outside], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)


@pytest.fixture
def hosts(require: Require) -> Iterator[list[Host]]:
    require("ip", "iproute2")
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root: sudo make test-hosts")
    made = [Host(f"ocrl-{uuid4().hex[:6]}", number) for number in range(1, 5)]
    try:
        for host in made:
            host.create()
    except subprocess.CalledProcessError as error:
        for host in made:
            host.remove()
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
    try:
        yield made
    finally:
        for host in made:
            host.remove()


class NetworkPostgres(Postgres):
    """One that the hosts reach over TCP."""

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses='*'"
        self._control("-o", options, "-l", str(self.folder / "log"), "start")


@pytest.fixture
def database(require: Require) -> Iterator[NetworkPostgres]:
    initdb, pg_ctl = require("initdb", "postgresql"), require("pg_ctl", "postgresql")
    folder = Path(tempfile.mkdtemp(prefix="hosts-pg-"))
    owner = pwd.getpwnam("postgres")
    os.chown(folder, owner.pw_uid, owner.pw_gid)
    postgres = NetworkPostgres(pg_ctl, folder)
    try:
        run_unprivileged(
            folder, initdb, "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"
        )
        with (folder / "data" / "pg_hba.conf").open("a") as file:
            file.write("host all all 10.213.0.0/16 trust\n")
        with (folder / "data" / "postgresql.conf").open("a") as file:
            file.write("port = 55432\n")
        postgres.start()
        try:
            yield postgres
        finally:
            postgres.stop("immediate")
    finally:
        shutil.rmtree(folder)
