"""The command ``openclaw-rl eval wishes``: measures baselines, runs arms in parallel, makes the table."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from tqdm import tqdm

from openclaw_rl.evals.personalize.plan import as_hint
from openclaw_rl.evals.personalize.talk import ConversationLog, System
from openclaw_rl.evals.wishes import report
from openclaw_rl.evals.wishes.arm import WishArm, WishRules, answer_items, look, run_system
from openclaw_rl.evals.wishes.items import HeldOutItem, items
from openclaw_rl.evals.wishes.wish import WishCase, drawn, written
from openclaw_rl.processes.server_process import ServerProcess
from openclaw_rl.serve.auth import KeyRing

STORIES = ("alone", "together", "taken-back", "second", "against")
#: People who share a system in the story "together".
_TOGETHER = 3
_TAKEN_BACK = "You don't have to do that any more. Please answer normally again."
_NOTE = "What this person asked for before, and still wants:\n- "


def run(options: argparse.Namespace, home: Path) -> int:
    out = options.out or home / "evals" / "wishes"
    out.mkdir(parents=True, exist_ok=True)
    threads = max(1, (os.cpu_count() or 2) // (options.parallel or 1))
    rules = WishRules(
        conversations=3 if options.quick else options.sessions or 16,
        short_look=options.held_out // 4,
        long_look=options.held_out,
        flags=tuple(options.serve_flags.split()),
        threads=threads,
        deadline=time.monotonic() + 60 * options.minutes if options.minutes else math.inf,
    )
    wishes, stories = chosen(options), options.stories.split(",")
    if unknown := set(stories) - set(STORIES):
        raise ValueError(f"there is no story {min(unknown)!r}; known: {', '.join(STORIES)}")
    contrary = contraries() if "against" in stories else []
    known = baselines([*wishes, *(wish for pair in contrary for wish in pair)], out, options)
    told = {
        row["wish"]: report.share(row["rows"]) for row in ConversationLog(out / "baselines.jsonl").of("told")
    }
    managed = [wish for wish in wishes if told[wish.name] >= report.MANAGED]
    systems = [
        arms
        for seed in range(options.seeds or 1)
        for story in stories
        for arms in shared(tell(story, seed, wishes, managed, contrary))
    ]
    failed = run_all(systems, out, rules, known, options.parallel or 1)
    text = report.write(out)
    print(text)
    print(f"table and raw logs: {out}")
    return 1 if failed else 0


def tell(
    story: str,
    seed: int,
    wishes: Sequence[WishCase],
    managed: Sequence[WishCase],
    contrary: Sequence[tuple[WishCase, WishCase]],
) -> list[WishArm]:
    """The arms of a story. Stories that continue after a wish is learned use only learnable wishes."""
    if story == "together":
        return [WishArm(wish, seed, together=True) for wish in wishes]
    if story == "taken-back":
        return [WishArm(wish, seed, taken_back=_TAKEN_BACK) for wish in managed]
    if story == "second":
        others = [*managed[1:], *managed[:1]]
        return [WishArm(a, seed, second=b) for a, b in zip(managed, others, strict=True) if a.kind != b.kind]
    if story == "against":
        return [WishArm(first, seed, second=second) for first, second in contrary]
    return [WishArm(wish, seed) for wish in wishes]


def shared(arms: Sequence[WishArm]) -> list[list[WishArm]]:
    """The arms by system: each its own, or three people to one."""
    number = _TOGETHER if any(arm.together for arm in arms) else 1
    return [list(arms[first : first + number]) for first in range(0, len(arms), number)]


def contraries() -> list[tuple[WishCase, WishCase]]:
    """Pairs of wishes from the file that contradict each other: the first to be taught, and the second."""
    known = written()
    return [(known[wish.against], wish) for wish in known.values() if wish.against]


def chosen(options: argparse.Namespace) -> list[WishCase]:
    """Wishes by name, ``written`` (all in the file), or ``drawn:N`` (N from the grammar, seeded by the
    commit's hash)."""
    names = (options.wishes or "drawn:12").split(",")
    found: list[WishCase] = []
    for name in names:
        if name == "written":
            found += written().values()
        elif name.startswith("drawn"):
            number = int(name.partition(":")[2] or 12)
            found += drawn(options.draw or _commit(), number)
        elif name in written():
            found.append(written()[name])
        else:
            raise ValueError(f"there is no wish {name!r}; known: written, drawn:N, {', '.join(written())}")
    return found


def _commit() -> str:
    """A seed that nobody can choose: the hash of the commit under test."""
    folder = Path(__file__).parent
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ValueError("not in a git checkout; name what wishes are drawn by: --draw TEXT")
    return done.stdout.strip()


def baselines(wishes: Sequence[WishCase], out: Path, options: argparse.Namespace) -> list[HeldOutItem]:
    """Measure the untrained model: as it is, hinted with each wish, and with a memory note. Returns the items
    it answers correctly."""
    log = ConversationLog(out / "baselines.jsonl")
    every, missing = items(options.items), []
    for wish in wishes:
        if wish.name not in {row["wish"] for row in log.of("told")}:
            missing.append(wish)
    if missing or not log.of("items"):
        home = out / "untrained" / "home"
        flags = ["--no-learn", "--max-waiting", "10000", *options.serve_flags.split()]
        with ServerProcess(home, *flags) as server:
            key = KeyRing(home / "keys.json").key_of("default") or ""
            with closing(System(server.url, key)) as system:
                _measure(system, missing, every, log, options)
    right = log.of("items")[-1]["right"]
    return [item for item, is_right in zip(every, right, strict=True) if is_right]


def _measure(
    system: System,
    wishes: Sequence[WishCase],
    every: Sequence[HeldOutItem],
    log: ConversationLog,
    options: argparse.Namespace,
) -> None:
    if not log.of("items"):
        log.write("items", {"right": answer_items(system, every)})
        log.write("plain", look(system, wishes, options.held_out))
    known = [item for item, right in zip(every, log.of("items")[-1]["right"], strict=True) if right]
    plain = [row["reply"] for row in log.of("plain")[-1]["rows"]]
    for wish in tqdm(wishes, desc="baselines", unit="wish"):
        told = as_hint(wish.says[0])
        right = answer_items(system, known, told)
        note = look(system, [wish], options.held_out, note=_NOTE + told) if options.note else {"rows": []}
        row = look(system, [wish], options.held_out, told=told)
        shown = sum(map(wish.shows, plain)) / len(plain)
        facts = {"wish": wish.name, "kind": wish.kind, "right": right, "note": note["rows"], "untold": shown}
        log.write("told", facts | row)


def run_all(
    systems: Sequence[Sequence[WishArm]],
    out: Path,
    rules: WishRules,
    known: Sequence[HeldOutItem],
    parallel: int,
) -> list[str]:
    """Run every arm to its end; returns the names of those that failed, which do not stop the others."""
    failed: list[str] = []
    lock = threading.Lock()
    with tqdm(total=sum(map(len, systems)) * rules.conversations, unit="conversation", smoothing=0.05) as bar:

        def tick() -> None:
            with lock:
                bar.update(1)

        def one(arms: Sequence[WishArm]) -> None:
            for arm in arms:
                _describe(arm, out / "arms" / arm.name)
            try:
                run_system(arms, out / "arms", rules, known, tick)
            except Exception as error:
                failed.append(arms[0].name)
                tqdm.write(f"{arms[0].name}: {type(error).__name__}: {error}", file=sys.stderr)

        with ThreadPoolExecutor(parallel) as pool:
            list(pool.map(one, systems))
    return failed


def _describe(arm: WishArm, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "wish": arm.wish.name,
        "kind": arm.wish.kind,
        "seed": arm.seed,
        "says": arm.wish.says,
        "story": arm.story,
        "second": arm.second.name if arm.second else None,
    }
    (folder / "arm.json").write_text(json.dumps(facts), encoding="utf-8")
