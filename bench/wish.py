"""Time from a complaint to the version that learned it, and where the time goes.

    python bench/wish.py                # ten complaints to its own server
    python bench/wish.py --complaints 3

One user states ten different wishes of the same kind, each replacing the one before; there are no other
requests. For a version that the gate rejects, the time until the rejection counts, and the table says so.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from openclaw_rl.evals.personalize.talk import System
from openclaw_rl.processes.server_process import UNREMINDED, ServerProcess
from openclaw_rl.serve.auth import KeyRing

#: ``answers``: everything before the step (the reply to the complaint, the judge, the teacher's answers).
#: ``checks``: everything after it (loading the candidate, the gate, publishing).
PARTS = {"seconds": "complaint to served", "answers": "answers", "step": "step", "checks": "checks"}
WORDS = ("Right", "Well", "Listen", "Okay", "So", "Now", "Look", "Sure", "Fine", "Yes")


def newest(system: System) -> dict[str, Any]:
    return max(system.get("/v1/policies")["data"], key=lambda policy: policy["version"])


def complain(system: System, number: int) -> dict[str, float | str]:
    """One conversation with one complaint; returns the times and status of its version."""
    before = newest(system)["version"]
    asked = [{"role": "user", "content": f"Tell me something about the number {number + 2}."}]
    reply = system.ask(asked, seed=number, sampling={"max_tokens": 48})
    said = f"Please begin every answer with the word {WORDS[number % len(WORDS)]}."
    started, began_at = time.monotonic(), time.time()
    system.ask(
        [*asked, {"role": "assistant", "content": reply.text}, {"role": "user", "content": said}],
        seed=number,
        sampling={"max_tokens": 48},
    )
    while (policy := newest(system))["version"] == before or policy["status"] in ("training", "candidate"):
        time.sleep(0.2)
    seconds, step = time.monotonic() - started, float(policy["metrics"]["total_s"])
    answers = float(policy["created_at"]) - began_at
    return {
        "seconds": seconds,
        "answers": answers,
        "step": step,
        "checks": seconds - answers - step,
        "status": policy["status"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--complaints", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        with (
            ServerProcess(home, *UNREMINDED) as server,
            closing(System(server.url, KeyRing(home / "keys.json").key_of("default") or "")) as system,
        ):
            rows = [complain(system, number) for number in range(options.complaints)]
    machine = platform.processor() or platform.machine()
    print(f"{machine}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print("| complaint | " + " | ".join(f"{name}, s" for name in PARTS.values()) + " | result |")
    print("|---" * (len(PARTS) + 2) + "|")
    for number, row in enumerate(rows, 1):
        print(f"| {number} | " + " | ".join(f"{row[part]:.1f}" for part in PARTS) + f" | {row['status']} |")
    medians = (statistics.median(float(row[part]) for row in rows) for part in PARTS)
    print("| median | " + " | ".join(f"{value:.1f}" for value in medians) + " | |")


if __name__ == "__main__":
    main()
