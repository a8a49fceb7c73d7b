"""The default model takes over from itself, told more: the share rises and falls, and the cloud is unplugged.

    python bench/takeover.py [--quick] [--save docs/results/takeover.json]
    python bench/plot.py            draws what was saved

Two ``openclaw-rl serve`` processes. The *cloud* is the default model with a hint in its prompt
(``ToldRenderer``); it does not learn. The other one has it as ``--upstream`` and runs ``--take-over``.
Simulated people want one short sentence about what they asked: they praise such a reply and complain about
any other, in words, through the chat API. Five phases:

1. *rising*: until the local model answers everything;
2. *alone*: it does;
3. *spoiled*: a version that the gate rejects is promoted by hand, until the cloud answers again, or until it
   is rolled back;
4. *back*: it does;
5. *unplugged*: the cloud's process is killed while people stream, and everybody goes on asking.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from takeover_people import Log, Person, talk

from openclaw_rl.processes.server_process import ServerProcess
from openclaw_rl.render.smollm2 import SmolLM2Renderer
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.testing import wait_until

HINT = "Please answer in one short sentence."
UPSTREAM = -1


class ToldRenderer(SmolLM2Renderer):
    """The cloud's: each last message ends with the hint."""

    def render(self, messages: Sequence[Any], *args: Any, **kwargs: Any) -> list[int]:
        last = messages[-1]
        if last["role"] == "user" and isinstance(last["content"], str):
            messages = [*messages[:-1], {**last, "content": f"{last['content']}\n\n{HINT}"}]
        return super().render(messages, *args, **kwargs)


# --- the product, as its owner uses it ---------------------------------------------------------


@dataclass
class Owner:
    server: ServerProcess
    http: httpx.Client

    def take_over(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get("/v1/take-over").json()
        return found

    def share(self) -> float:
        return float(self.take_over()["share"])

    def policies(self) -> dict[int, str]:
        return {row["version"]: row["status"] for row in self.http.get("/v1/policies").json()["data"]}

    def serving(self) -> int:
        return next((version for version, status in self.policies().items() if status == "serving"), 0)

    def wait(self, until: float) -> None:
        """For everything to be judged and looked at for the share; if nothing serves, also learned."""
        quiet = 0
        while quiet < 6 and time.monotonic() < until:
            time.sleep(0.5)
            status = self.http.get("/v1/status").json()
            quiet = 0 if self._waits(status) else quiet + 1

    @staticmethod
    def _waits(status: dict[str, Any]) -> bool:
        if not status["policy_version"] or status["funnel"] is None:
            return bool(status["busy"])
        return bool(status["funnel"]["judge_due"] or status["funnel"]["by_state"]["judged"])

    def command(self, *words: str) -> str:
        called = [sys.executable, "-m", "openclaw_rl", *words, "--home", str(self.server.home)]
        return subprocess.run(called, check=True, stdout=subprocess.PIPE, text=True).stdout

    def spoil(self, folder: Path) -> int:
        """What serves, its weights shuffled: imported, rejected by the gate, promoted all the same."""
        self.command("policy", "export", str(self.serving()), "--format", "peft", "--to", str(folder))
        shuffle_weights(folder / "adapter_model.safetensors")
        said = self.command("import", "adapter", str(folder))
        new = int(said.removeprefix("version ").partition(":")[0])
        wait_until(
            lambda: self.policies()[new] not in ("training", "candidate"), "the gate looked at it", 600
        )
        status = self.policies()[new]
        if status != "serving":
            self.command("policy", "promote", str(new))
        return new


def shuffle_weights(file: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    generator = torch.Generator().manual_seed(0)
    tensors = load_file(file)
    for name, tensor in tensors.items():
        order = torch.randperm(tensor.numel(), generator=generator)
        tensors[name] = tensor.flatten()[order].reshape(tensor.shape).contiguous()
        if "lora_B" in name:
            tensors[name] *= 4
    save_file(tensors, file)


# --- the run -----------------------------------------------------------------------------------


def cores() -> int:
    return len(os.sched_getaffinity(0))


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    found = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    threads = dict.fromkeys(("OPENCLAW_RL_NUM_THREADS", "OPENCLAW_RL_TRAIN_THREADS"), str(options.threads))
    cloud = ServerProcess(
        folder / "cloud",
        "--no-learn",
        "--no-auth",
        "--renderer",
        "takeover:ToldRenderer",
        *options.cloud_flags.split(),
        environment={**threads, "PYTHONPATH": found},
    )
    home = folder / "local"
    ring = KeyRing(home / "keys.json")
    names = ["default", *(f"person-{number}" for number in range(1, options.people))]
    keys = [ring.key_of(name) or ring.add(name) for name in names]
    with cloud:
        local = ServerProcess(
            home, "--upstream", f"{cloud.url}/v1", "--take-over", "--upstream-terms", "allow-learning",
            "--take-over-shares", options.shares, "--policy-scope", "everyone",
            *(["--no-learn"] if options.outage else []), *options.local_flags.split(), environment=threads,
        )  # fmt: skip
        with (
            local,
            httpx.Client(
                base_url=local.url, headers={"authorization": f"Bearer {keys[0]}"}, timeout=60
            ) as http,
        ):
            log, owner = Log.kept(options.save), Owner(local, http)
            people = [Person(local.url, key, number, log) for number, key in enumerate(keys)]
            if options.outage:
                unplug(people, cloud, log, options)
            else:
                phases(people, owner, cloud, log, folder / "spoiled", options)
            history = owner.take_over()["history"]
            statuses = owner.policies()
    return {
        "machine": f"{cores()} cores, {platform.machine()}, Python {platform.python_version()}",
        "shares": options.shares,
        **log.view(),
        "history": [{"share": each["share"], "why": each["why"]} for each in reversed(history)],
        "versions": statuses,
    }


def phases(
    people: list[Person],
    owner: Owner,
    cloud: ServerProcess,
    log: Log,
    spoiled: Path,
    options: argparse.Namespace,
) -> None:
    shares = Shares(owner, log, time.monotonic() + 60 * options.minutes, owner.share())
    late = lambda: shares.is_late  # noqa: E731
    for phase in options.phases.split(","):
        if late():
            return
        if phase == "rising":
            if not owner.serving():
                talk(people, phase, lambda: shares.now() > 0, options.most, is_late=late)
            if shares.share < 1.0:
                talk(people, phase, lambda: shares.now() == 1.0, options.most, each=10, is_late=late)
            if shares.share < 1.0:
                return
        elif phase == "alone":
            talk(people, phase, lambda: shares.now() < 0, options.each, is_late=late)
        elif phase == "spoiled":
            bad = owner.spoil(spoiled)
            log.event("a spoiled version serves", version=bad)
            undone = lambda: shares.now() == 0.0 or owner.serving() != bad  # noqa: B023, E731
            talk(people, phase, undone, options.most, each=1, is_late=late)
        elif phase == "back":
            talk(people, phase, lambda: False, options.each)
        else:
            unplug(people, cloud, log, options)


def unplug(people: list[Person], cloud: ServerProcess, log: Log, options: argparse.Namespace) -> None:
    asking = threading.Thread(target=talk, args=(people, "unplugged", lambda: False, 1, options.each // 2))
    begun = len(log.conversations)
    asking.start()
    wait_until(lambda: len(log.conversations) >= begun + len(people), "people are being answered", 300)
    cloud.kill()
    log.event("the cloud is unplugged")
    asking.join()


@dataclass
class Shares:
    """Notes changes of the share."""

    owner: Owner
    log: Log
    until: float
    """When to stop, whatever the share is; a later run goes on."""
    share: float = 0.0

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.until

    def now(self) -> float:
        """The share, once everything so far is judged."""
        self.owner.wait(self.until)
        found = self.owner.take_over()
        if found["share"] != self.share:
            self.share = found["share"]
            self.log.event(f"{self.share:.0%} here", why=found["why"], version=self.owner.serving())
        else:
            counted = {side: found[side] for side in ("here", "upstream")}
            self.log.event("judged", version=self.owner.serving(), **counted)
        self.log.keep()
        return self.share


# --- shown -------------------------------------------------------------------------------------


def table(saved: dict[str, Any]) -> str:
    """For each phase and share: who answered, and how many of the replies were as people wish."""
    lines = [
        "| phase | share | conversations | answered here | liked, here | liked, cloud | failed requests |"
    ]
    lines.append("|---" * 7 + "|")
    groups: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for each in saved["conversations"]:
        groups.setdefault((each["phase"], each["share"]), []).append(each)
    for (phase, share), rows in groups.items():
        here = [row["met"] for row in rows if row["version"] != UPSTREAM]
        there = [row["met"] for row in rows if row["version"] == UPSTREAM]
        failed = sum(problem.startswith(f"{phase}:") for problem in saved["failed"])
        failures = f"{failed} of {saved['num_requests'][phase]}"
        cells = (phase, f"{share:.0%}", len(rows), len(here), _rate(here), _rate(there), failures)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _rate(met: list[bool]) -> str:
    return f"{sum(met)} of {len(met)} ({sum(met) / len(met):.0%})" if met else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer conversations in each phase")
    parser.add_argument("--outage", action="store_true", help="only unplugged, without learning")
    parser.add_argument("--people", type=int, default=4)
    parser.add_argument("--shares", default="0.25,0.5,1", help="as --take-over-shares")
    parser.add_argument("--most", type=int, default=800, help="conversations until the share rose or fell")
    parser.add_argument("--each", type=int, default=60, help="conversations in each other phase")
    parser.add_argument("--minutes", type=float, default=60, help="of this run")
    parser.add_argument("--folder", type=Path, help="keeps everything, so that another run goes on with it")
    parser.add_argument("--phases", default="rising,alone,spoiled,back,unplugged", help="of this run")
    parser.add_argument("--cloud-flags", default="", help="of the cloud's openclaw-rl serve")
    parser.add_argument("--local-flags", default="", help="of the other one's")
    parser.add_argument("--threads", type=int, default=0, help="of each process; 0: as many as cores")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.most, options.each = 300, 16
    with nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory() as folder:
        saved = measure(Path(folder), options)
    print(table(saved))
    print(json.dumps({name: value for name, value in saved.items() if name != "conversations"}, indent=1))
    if options.save:
        options.save.write_text(json.dumps(saved) + "\n")


if __name__ == "__main__":
    main()
