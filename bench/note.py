"""One complaint, nothing trained: how many first replies to new questions are right with the note alone?

    python -m bench.note                 # every user of openclaw_rl/evals/personalize/users; minutes each
    python -m bench.note short list --out note.json

Each user asks the untrained model held-out questions, complains once in a conversation of its own, and asks
the same questions again, each in a new conversation. No version is trained (``--no-train``), so that whatever
changed is the note's doing. A reply counts if it follows the wish and answers the question.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from openclaw_rl.evals.personalize.talk import SimulatedUser, System
from openclaw_rl.evals.personalize.users import User, load_user
from openclaw_rl.processes.server_process import ServerProcess
from openclaw_rl.serve.auth import KeyRing

HELD_OUT = 20
USERS = ("short", "list", "simple", "student", "teacher", "assistant")


def measure(user: User, folder: Path) -> dict[str, Any]:
    with (
        ServerProcess(folder / user.name, "--no-train") as server,
        closing(System(server.url, KeyRing(server.home / "keys.json").key_of("default") or "")) as system,
    ):
        person = SimulatedUser(user.name, [user], system, seed=0)
        tasks = list(islice(user.tasks("held_out", 1), HELD_OUT))
        before, plain = person.examine(tasks, seed=7), prompt_tokens(system)
        said = user.complaint(random.Random(0))
        began = time.monotonic()
        complain(system, next(user.tasks("train", 0)).text, said)
        while prompt_tokens(system) == plain:
            time.sleep(0.2)
        noted_s = time.monotonic() - began
        after = person.examine(tasks, seed=7)
    return {
        "person": user.name, "complaint": said, "noted after s": round(noted_s, 1), "questions": HELD_OUT,
        "right before": right(before), "right with the note": right(after),
        "wish met before": met(before), "wish met with the note": met(after),
    }  # fmt: skip


def complain(system: System, question: str, said: str) -> None:
    asked = {"role": "user", "content": question}
    reply = system.ask([asked], seed=0).text
    system.ask([asked, {"role": "assistant", "content": reply}, {"role": "user", "content": said}], seed=1)


def prompt_tokens(system: System) -> int:
    """They grow when the note is given."""
    asked = [{"role": "user", "content": "Hello!"}]
    return system.ask(asked, seed=0, side=True, sampling={"max_tokens": 1}).prompt_tokens


def right(rows: list[dict[str, Any]]) -> int:
    return sum(row["liked"] and row["answered"] for row in rows)


def met(rows: list[dict[str, Any]]) -> int:
    return sum(row["liked"] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("person", nargs="*", default=USERS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = []
    for name in options.person:
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(load_user(name), Path(folder)))
        print(json.dumps(found[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
