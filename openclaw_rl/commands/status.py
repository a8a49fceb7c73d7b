"""``openclaw-rl status``: whether a server learns, and what, in plain words; ``--all`` adds numbers."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time

from openclaw_rl.commands.client import ServerClient
from openclaw_rl.config import Config
from openclaw_rl.text import plural
from openclaw_rl.types import Json

_CLEAR = "\x1b[H\x1b[2J"
_EVERY_S = 1.0
#: More than any line has.
_UNCUT = 1000


def run(options: argparse.Namespace, config: Config) -> int:
    with ServerClient.chosen(options, config) as server:
        while True:
            status = server.get("/v1/status")
            if options.json:
                print(json.dumps(status, indent=None if options.watch else 2), flush=True)
            else:
                clear = _CLEAR if options.watch and sys.stdout.isatty() else ""
                print(f"{clear}{_shown(server, status, options.all)}", flush=True)
            if not options.watch:
                return 0
            time.sleep(_EVERY_S)


def _shown(server: ServerClient, status: Json, all_numbers: bool) -> str:
    user = server.get("/v1/me")["user"]
    learning = server.get("/v1/learning", user=user)
    said = summarise(status, learning["headline"], server.url)
    return f"{said}\n\n{describe(status, server.url)}" if all_numbers else said


def summarise(status: Json, headline: str, url: str) -> str:
    """For people: who answers, what is learned, how much is kept, and what is wrong, if anything."""
    version, funnel = status["policy_version"], status["funnel"]
    answers = f"version {version}" if version else "the unchanged base model"
    lines = [f"{status['model']} at {url}; {answers} answers.", headline]
    if funnel:
        judged = next(stage["turns"] for stage in funnel["stages"] if stage["name"] == "judged")
        kept = (
            f"{plural(funnel['turns'], 'reply', 'replies')} in {plural(funnel['sessions'], 'conversation')}"
        )
        lines.append(f"Kept: {kept}; {plural(judged, 'reaction')} judged.")
    lines += [line.capitalize() for line in _take_over(status.get("take_over"))]
    lines += [f"Problem: {problem}" for problem in _problems(status)]
    return "\n".join(lines)


def _problems(status: Json) -> list[str]:
    ledger = status["ledger"]
    unsaved, lost = ledger.get("num_unsaved"), ledger.get("num_lost")
    waiting = f"; {plural(unsaved, 'reply', 'replies')} kept in memory until it can" if unsaved else ""
    return [
        *([status["policy"]["problem"]] if status["policy"]["problem"] else []),
        *([] if ledger["ok"] else [f"the ledger cannot be written ({ledger['error']}){waiting}"]),
        *([f"{plural(lost, 'reply', 'replies')} could not be stored"] if lost else []),
    ]


def describe(status: Json, url: str) -> str:
    # In a file or a pipe, lines are as long as they are.
    width = min(100, shutil.get_terminal_size().columns) if sys.stdout.isatty() else _UNCUT
    lines = [
        f"{status['status']}: {status['model']} at {url}, policy version {status['policy_version']}",
        f"traffic   {_traffic(status)}",
        f"queues    {status['queues']['running']} running, {status['queues']['waiting']} waiting, "
        f"{status['queues']['judge']} to judge",
        *_funnel(status["funnel"], width),
        f"learning  {_learning(status)}",
        f"wishes    {_wishes(status.get('wishes'))}",
        *_take_over(status.get("take_over")),
        f"swap      {_swap(status.get('last_swap'))}",
        f"ledger    {_ledger(status['ledger'])}",
    ]
    return "\n".join(lines)


def _traffic(status: Json) -> str:
    traffic = status.get("traffic")
    if traffic is None:
        return "unknown: the database cannot be read"
    return f"{traffic['requests_per_s']:.2f} requests/s, {traffic['tokens_per_s']:.1f} tokens/s"


def _funnel(funnel: Json | None, width: int) -> list[str]:
    if funnel is None:
        return ["turns     unknown: the database cannot be read"]
    lines = [f"turns     {funnel['turns']} in {plural(funnel['sessions'], 'session')}"]
    room, most = max(10, min(100, width) - 24), max(1, funnel["turns"])
    for stage in funnel["stages"]:
        bar = "█" * round(room * stage["turns"] / most)
        lines.append(f"  {stage['name']:<8} {stage['turns']:>9} {bar}")
        lines += [f"{'':>12}-{number} {reason}"[:width] for reason, number in stage["lost"].items()]
    return lines


def _learning(status: Json) -> str:
    queues, step = status["queues"], status["last_step"]
    said = f"{queues['samples']} of {queues['samples_per_step']} samples toward the next step"
    if status["stage"]:
        doing = {"training": "a version is being trained", "candidate": "a version is being checked"}
        said += f"; {doing.get(status['stage'], status['stage'])}"
    if step:
        checks = "passed" if step["gate"].get("passed") else step["gate"].get("reason") or "being checked"
        said += f"; last step made version {step['version']} ({checks}), {step['metrics']['total_s']:.1f} s"
    if problem := status["policy"]["problem"]:
        said += f"; an earlier version serves: {problem}"
    if status["learn"] and not status["learn"]["running"]:
        said += "; the learning process has stopped"
    return said


def _take_over(found: Json | None) -> list[str]:
    if found is None:
        return []
    heard = [f"{name} {each['mean']:+.2f} of {each['verdicts']}" for name, each in
             (("here", found["here"]), ("upstream", found["upstream"])) if each["verdicts"]]  # fmt: skip
    said = f"take-over {found['share']:.0%} of conversations answered here ({found['why']})"
    if found["problem"]:
        said += f"; the other model does not answer ({found['problem']})"
    return [f"{said}; verdicts since: {', '.join(heard)}" if heard else said]


def _wishes(wishes: Json | None) -> str:
    if not wishes:
        return "none yet"
    said = ", ".join(f"{number} {status}" for status, number in sorted(wishes.items()))
    if wishes.get("not learnable"):
        said += " (the model cannot do these even when told to; see the dashboard's Wishes page)"
    return said


def _swap(swap: Json | None) -> str:
    if swap is None:
        return "none yet"
    seconds = max(0, time.time() - swap["at"])
    passed = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
    said = f"version {swap['version']} {passed} ago ({swap['why']}); {swap['replies']} replies around it, "
    return said + f"{swap['failed']} cut off, {'?' if swap['delayed'] is None else swap['delayed']} delayed"


def _ledger(ledger: Json) -> str:
    state = "ok" if ledger["ok"] else str(ledger["error"])
    if "num_lost" not in ledger:  # only the owner sees how much was lost
        return state
    return f"{state}; {ledger['num_unsaved']} unsaved, {ledger['num_lost']} lost"
