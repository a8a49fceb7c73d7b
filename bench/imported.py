"""Thirty old complaints are imported: how many conversations until a new one is right at the first reply?

    python bench/imported.py short          # one of openclaw_rl/evals/personalize/users; minutes on two cores
    python bench/imported.py list --out list.json

The person talks to the untrained model and complains. What was said, as a ShareGPT file, is all that the new
server gets, through `openclaw-rl import`. The new conversations are about other subjects. It also prints the
share of first replies to other questions that were right before and after, since the untrained model may
please by chance.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from openclaw_rl.evals.personalize.talk import SimulatedUser, System
from openclaw_rl.evals.personalize.tasks import ChatTask
from openclaw_rl.evals.personalize.users import User, load_user
from openclaw_rl.processes.server_process import UNREMINDED, ServerProcess, clean_environment
from openclaw_rl.serve.auth import KeyRing

COMPLAINTS, NEW, HELD_OUT = 30, 5, 20
Said = list[dict[str, Any]]


def old_conversations(user: User, system: System) -> list[Said]:
    """Each: a question, the untrained model's reply, the complaint, and the next reply."""

    def one(numbered: tuple[int, ChatTask]) -> Said:
        number, task = numbered
        messages: Said = [{"role": "user", "content": task.text}]
        reply = system.ask(messages, seed=number, side=True).text
        if user.likes(reply):
            return []
        said = user.complaint(random.Random(number))
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": said}]
        better = system.ask(messages, seed=number, side=True).text
        return [*messages, {"role": "assistant", "content": better}]

    tasks, found = enumerate(user.tasks("train", 0)), list[Said]()
    with ThreadPoolExecutor(8) as pool:
        while len(found) < COMPLAINTS:
            found += filter(None, pool.map(one, islice(tasks, COMPLAINTS - len(found))))
    return found


def write_sharegpt(conversations: Sequence[Said], path: Path) -> None:
    speaker = {"user": "human", "assistant": "gpt"}
    rows = [
        {"conversations": [{"from": speaker[m["role"]], "value": m["content"]} for m in each]}
        for each in conversations
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")


def tell(begun: float, what: str) -> None:
    """Progress, with the seconds since the start: learning takes minutes."""
    print(f"{time.monotonic() - begun:4.0f} s  {what}", file=sys.stderr, flush=True)


def share(person: SimulatedUser, number: int) -> float:
    rows = person.examine(list(islice(person.wishes[0].tasks("held_out", 1), number)), seed=7)
    return sum(row["liked"] and row["answered"] for row in rows) / number


def opened(server: ServerProcess) -> System:
    return System(server.url, KeyRing(server.home / "keys.json").key_of("default") or "")


def has_learned_all(system: System, within_s: float) -> bool:
    """Otherwise the new conversations begin with what has been learned by then."""
    try:
        system.wait(within_s)
    except TimeoutError:
        return False
    return True


def measure(user: User, folder: Path, minutes: float) -> dict[str, Any]:
    exported, began = folder / "old.jsonl", time.monotonic()
    with ServerProcess(folder / "old", "--no-learn") as server, closing(opened(server)) as system:
        person = SimulatedUser(user.name, [user], system, seed=0)
        write_sharegpt(old_conversations(user, system), exported)
        before = share(person, HELD_OUT)
    tell(began, f"the untrained model is right in {before:.0%}; its replies and the complaints are imported")
    command = [sys.executable, "-m", "openclaw_rl", "import", str(exported)]
    imported = subprocess.run(
        command, env=clean_environment(folder / "new"), check=True, capture_output=True, text=True
    )
    begun = time.monotonic()
    with ServerProcess(folder / "new", *UNREMINDED) as server, closing(opened(server)) as system:
        all_learned = has_learned_all(system, 60 * minutes)
        learned_s = time.monotonic() - begun
        tell(began, "judged and learned" if all_learned else "the time for learning is over")
        person = SimulatedUser(user.name, [user], system, seed=0)
        after = share(person, HELD_OUT)
        person.tasks = user.tasks("held_out", 2)
        first = [person.converse(number) for number in range(NEW)]
        versions = [(one["version"], one["status"]) for one in system.get("/v1/policies")["data"]]
    return {
        "person": user.name,
        "imported": next(line for line in imported.stderr.splitlines() if "imported" in line),
        "learned for s": round(learned_s),
        "all learned": all_learned,
        "versions": versions,
        "held-out right before": before,
        "held-out right after": after,
        "first replies right": [row["strict"] for row in first],
        "replies": [row["turns"][0] for row in first],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("person")
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--minutes", type=float, default=6, help="at most, from the start to the new conversations"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(load_user(options.person), Path(folder), options.minutes)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    right = result["first replies right"]
    result["first satisfied conversation"] = right.index(True) + 1 if any(right) else None
    print(json.dumps({name: value for name, value in result.items() if name != "replies"}, indent=1))


if __name__ == "__main__":
    main()
