"""The default model takes over from itself, told more: the share rises and falls, and the cloud is unplugged.

    python bench/takeover.py [--quick] [--save docs/results/takeover.json]
    python bench/plot.py            draws what was saved

Two ``openclaw-rl serve`` processes. The *cloud* is the default model with a hint in its prompt
(``ToldRenderer``); it does not learn. The other one has it as ``--upstream`` and runs ``--take-over``.
Simulated people want one short sentence about what they asked: they praise such a reply and complain about
any other, in words, through the chat API. Five phases:

1. *rising*: until the local model answers everything;
2. *alone*: it does;
3. *spoiled*: a version that the gate rejects is promoted by hand, until the cloud answers again;
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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from openclaw_rl.evals.wishes.wish import TRAINED, UNSEEN, Request, requests, written
from openclaw_rl.processes.server_process import ServerProcess
from openclaw_rl.render.smollm2 import SmolLM2Renderer
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.testing import wait_until

HINT = "Please answer in one short sentence."
WISH = written()["one-sentence"]
PRAISE = ("Thanks, that is exactly how I like it.", "Perfect, thank you!", "Great, just what I wanted.")
UPSTREAM = -1


class ToldRenderer(SmolLM2Renderer):
    """The cloud's: each last message ends with the hint."""

    def render(self, messages: Sequence[Any], *args: Any, **kwargs: Any) -> list[int]:
        last = messages[-1]
        if last["role"] == "user" and isinstance(last["content"], str):
            messages = [*messages[:-1], {**last, "content": f"{last['content']}\n\n{HINT}"}]
        return super().render(messages, *args, **kwargs)


@dataclass
class Conversation:
    at: float
    phase: str
    share: float
    version: int
    """Who answered; -1 is the cloud."""
    met: bool


@dataclass
class Log:
    conversations: list[Conversation] = field(default_factory=list)
    num_requests: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    save: Path | None = None
    """Where everything so far is kept, should the run be cut off."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def requested(self, phase: str, problem: str = "") -> None:
        with self._lock:
            self.num_requests[phase] = self.num_requests.get(phase, 0) + 1
            if problem:
                self.failed.append(f"{phase}: {problem}")

    def add(self, each: Conversation) -> None:
        with self._lock:
            self.conversations.append(each)

    def event(self, what: str, **more: Any) -> None:
        """Something happened after so many conversations."""
        self.events.append({"after": len(self.conversations), "what": what, **more})
        print(
            f"{time.monotonic() - self.began:6.0f} s, {len(self.conversations)} conversations: {what} {more}",
            flush=True,
        )

    def keep(self) -> None:
        if self.save:
            self.save.write_text(json.dumps(self.view()) + "\n")

    def view(self) -> dict[str, Any]:
        return {
            "minutes": (time.monotonic() - self.began) / 60,
            "conversations": [asdict(each) for each in self.conversations],
            "num_requests": self.num_requests,
            "failed": self.failed,
            "events": self.events,
        }


class Failed(Exception):
    """A request got no whole reply."""


class Person:
    """Wants one short sentence about what was asked. Streams, as clients do."""

    def __init__(self, url: str, key: str, number: int, log: Log) -> None:
        self.http = httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=300)
        self.log, self.number, self.done = log, number, 0
        self._asks = requests("train", TRAINED + UNSEEN, 10_000, seed=number)

    def converse(self, phase: str) -> None:
        asked = self._asks[self.done]
        self.done += 1
        seed = 10_000 * self.number + self.done
        messages = [{"role": "user", "content": asked.text}]
        try:
            text, version = self._ask(phase, messages, 96, seed)
            met = WISH.is_met(text, asked)
            said = self._reaction(text, asked, met)
            more = [{"role": "assistant", "content": text}, {"role": "user", "content": said}]
            share = float(self.http.get("/v1/take-over").json()["share"])
            self.log.add(Conversation(time.monotonic() - self.log.began, phase, share, version, met))
            self._ask(phase, [*messages, *more], 8, seed)
        except Failed:
            pass

    def _reaction(self, text: str, asked: Request, met: bool) -> str:
        if met:
            return PRAISE[self.done % len(PRAISE)]
        if WISH.shows(text):
            return "That is not about what I asked."
        return WISH.says[self.done % len(WISH.says)]

    def _ask(self, phase: str, messages: list[dict[str, str]], max_tokens: int, seed: int) -> tuple[str, int]:
        body = {
            "model": "default",
            "messages": messages,
            "max_tokens": max_tokens,
            "seed": seed,
            "stream": True,
        }
        try:
            text, version = self._stream(body)
        except (Failed, httpx.HTTPError) as problem:
            self.log.requested(phase, f"{type(problem).__name__}: {problem}")
            raise Failed from problem
        self.log.requested(phase)
        return text, version

    def _stream(self, body: dict[str, Any]) -> tuple[str, int]:
        text, finished = "", False
        with self.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                raise Failed(f"{answer.status_code} {answer.read()[:200]!r}")
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        raise Failed(str(chunk["error"]))
                    for choice in chunk["choices"]:
                        text += choice["delta"].get("content") or ""
                        finished = finished or choice["finish_reason"] is not None
        if not finished:
            raise Failed("the stream ended early")
        return text, int(answer.headers["x-policy-version"])


def talk(people: list[Person], phase: str, settled: Callable[[], bool], most: int, each: int = 3) -> None:
    """Everybody has ``each`` conversations, one after the other; then comes the next round, up to ``most``
    conversations in all. ``settled`` is called between rounds, and says whether there are enough.
    """
    begun = len(people[0].log.conversations)

    def go_on(person: Person) -> None:
        for _ in range(each):
            person.converse(phase)

    while len(people[0].log.conversations) - begun < most:
        threads = [threading.Thread(target=go_on, args=(person,)) for person in people]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if settled():
            return


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

    def wait(self) -> None:
        """Until everything is judged and was looked at for the share; if nothing serves, also learned."""
        quiet = 0
        while quiet < 6:
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
            log, owner = Log(save=options.save), Owner(local, http)
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
    shares = Shares(owner, log)
    is_late = lambda: time.monotonic() - log.began > 60 * options.minutes  # noqa: E731
    talk(people, "rising", lambda: shares.now() == 1.0 or is_late(), options.most, each=10)
    if shares.share == 1.0:
        talk(people, "alone", lambda: shares.now() < 0, options.each)
        if not is_late():
            log.event("a spoiled version serves", version=owner.spoil(spoiled))
            talk(people, "spoiled", lambda: shares.now() == 0.0, options.most, each=1)
            talk(people, "back", lambda: False, options.each)
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
    share: float = 0.0

    def now(self) -> float:
        """The share, once everything so far is judged and learned."""
        self.owner.wait()
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
    parser.add_argument("--minutes", type=float, default=60, help="until the share has risen")
    parser.add_argument("--cloud-flags", default="", help="of the cloud's openclaw-rl serve")
    parser.add_argument("--local-flags", default="", help="of the other one's")
    parser.add_argument("--threads", type=int, default=0, help="of each process; 0: as many as cores")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.most, options.each = 300, 16
    with tempfile.TemporaryDirectory() as folder:
        saved = measure(Path(folder), options)
    print(table(saved))
    print(json.dumps({name: value for name, value in saved.items() if name != "conversations"}, indent=1))
    if options.save:
        options.save.write_text(json.dumps(saved) + "\n")


if __name__ == "__main__":
    main()
