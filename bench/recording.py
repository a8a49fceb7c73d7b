"""A recording of it learning: one complaint, the version made for it, and new questions afterwards.

    python bench/recording.py           # holds the conversations, then draws them: minutes on two cores
    python bench/recording.py --draw    # draws docs/img/learning-demo.svg from docs/results/recording.json

A real server with the default model in a folder of its own, used through its API as the README's program
does. Whatever comes out is kept and drawn: nothing is chosen among several answers, and no text is changed.
Long answers are cut in the picture, which says so; the file has them in full.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import openai

from openclaw_rl import __version__
from openclaw_rl.evals.personalize.talk import System
from openclaw_rl.processes.server_process import UNREMINDED, ServerProcess
from openclaw_rl.serve.auth import KeyRing

DOCS = Path(__file__).parent.parent / "docs"
SAVED, PICTURE = DOCS / "results" / "recording.json", DOCS / "img" / "learning-demo.svg"
FIRST, COMPLAINT = "What is photosynthesis?", "Please answer in one short sentence."
#: The model is neither taught nor checked on these (openclaw_rl/train/requests.txt, gate_requests.txt).
THEN = ("What is a glacier?", "How do fish breathe?")
#: As `openclaw-rl chat` asks.
TEMPERATURE = 0.7
POLL_S, GIVE_UP_S = 0.2, 1800.0
Event = dict[str, Any]


# --- recording ---------------------------------------------------------------------------------


class Recorder:
    """What is said and what happens, with the seconds since the first word."""

    def __init__(self, system: System, client: openai.OpenAI) -> None:
        self.events: list[Event] = []
        self._system, self._client, self._started = system, client, time.monotonic()

    def say(self, conversation: int, messages: list[Any], text: str) -> str:
        """Says it, keeps the answer as it was streamed, and returns the turn's id."""
        messages.append({"role": "user", "content": text})
        self._write("say", conversation=conversation, text=text)
        answer = self._client.chat.completions.with_raw_response.create(
            model="default", stream=True, temperature=TEMPERATURE, messages=messages
        )
        turn, pieces = "", []
        for chunk in answer.parse():
            turn = chunk.id
            pieces += [
                [self._now(), choice.delta.content] for choice in chunk.choices if choice.delta.content
            ]
        version = int(answer.headers["x-policy-version"])
        self._write("reply", conversation=conversation, version=version, pieces=pieces)
        messages.append({"role": "assistant", "content": "".join(piece for _, piece in pieces)})
        return turn

    def watch(self, turn: str) -> None:
        """What becomes of this turn, until the version that learned from it serves or was rejected."""
        known: list[Event] = []
        while not (known and known[-1].get("status") in ("serving", "rejected")):
            if self._now() > GIVE_UP_S:
                raise TimeoutError(f"no version after {GIVE_UP_S:.0f} s; so far: {json.dumps(self.events)}")
            time.sleep(POLL_S)
            for news in (news for news in self._news(turn) if news not in known):
                known.append(news)
                self._write(**news)

    def _news(self, turn: str) -> Iterator[Event]:
        seen = self._system.get(f"/v1/turns/{turn}")
        if seen["verdict"]:
            yield {"event": "verdict", "score": seen["verdict"]["score"]}
        for policy in self._system.get("/v1/policies")["data"]:
            if policy["version"] and policy["version"] == seen["step"]:
                checks = len(policy["gate"].get("checks", ()))
                passed = {"checks": checks, "reason": policy["gate"].get("reason", "")} if checks else {}
                yield {"event": "version", "version": seen["step"], "status": policy["status"], **passed}

    def _write(self, event: str, **what: Any) -> None:
        self.events.append({"at": self._now(), "event": event, **what})

    def _now(self) -> float:
        return round(time.monotonic() - self._started, 3)


def record(system: System, client: openai.OpenAI) -> list[Event]:
    recorder, messages = Recorder(system, client), list[Any]()
    complained_about = recorder.say(1, messages, FIRST)
    recorder.say(1, messages, COMPLAINT)
    recorder.watch(complained_about)
    for number, question in enumerate(THEN, 2):
        recorder.say(number, [], question)
    return recorder.events


def run() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        with ServerProcess(home, *UNREMINDED) as server:
            key = KeyRing(home / "keys.json").key_of("default") or ""
            with (
                closing(System(server.url, key)) as system,
                openai.OpenAI(base_url=f"{server.url}/v1", api_key=key) as client,
            ):
                model, load = system.get("/v1/status")["model"], round(os.getloadavg()[0], 1)
                events = record(system, client)
    about = {"model": model, "openclaw_rl": __version__, "machine": machine(), "load_before": load}
    return {**about, "temperature": TEMPERATURE, "events": events}


def machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.machine()
    return f"{os.cpu_count()} cores, {name}"


def write_json(saved: dict[str, Any]) -> None:
    """One line for each event, so that it can be read."""
    about = json.dumps({key: value for key, value in saved.items() if key != "events"}, indent=1)
    events = ",\n".join("  " + json.dumps(event, ensure_ascii=False) for event in saved["events"])
    SAVED.write_text(f'{about[:-2]},\n "events": [\n{events}\n ]\n}}\n', encoding="utf-8")


# --- drawing -----------------------------------------------------------------------------------

WIDTH, SIZE, LINE, MARGIN, TOP = 820, 13.5, 20, 22, 62
#: A character of a monospaced font is about so wide; so many fit beside the label.
COLUMN, COLUMNS, LABEL_WIDTH = 8.1, 82, 92
#: Lines of one answer.
MOST_LINES = 6
#: Seconds of the animation. Streaming is as fast as it was, or faster if it took longer.
TYPE_S, THINK_S, STREAM_S, LOOK_S, STEP_S, HOLD_S, TICK_S = 0.035, 0.3, 3.5, 0.8, 1.1, 5.0, 0.1
BACK, FRAME = "#0d1117", "#30363d"
BUTTONS = {24: "#ff5f57", 42: "#febc2e", 60: "#28c840"}
COLOURS = {"you": "#7ee787", "base": "#ffa657", "version": "#79c0ff", "note": "#8b949e", "text": "#e6edf3"}


@dataclass(slots=True)
class Stage:
    """The animation so far: lines of text whose characters appear at their own times."""

    time_s: float = 0.4
    y: float = TOP
    parts: list[str] = field(default_factory=list)
    ticks: set[int] = field(default_factory=set)

    def text(self, x: float, colour: str, text: str, times: list[float]) -> None:
        ticks = [round(time_s / TICK_S) for time_s in times]
        runs = [list(run) for _, run in groupby(zip(ticks, text, strict=True), key=lambda pair: pair[0])]
        self.ticks.update(ticks)
        spans = [f'<tspan class="t{run[0][0]}">{escape("".join(c for _, c in run))}</tspan>' for run in runs]
        head = f'<text x="{x}" y="{self.y:.0f}" fill="{COLOURS[colour]}" xml:space="preserve">'
        self.parts.append(head + "".join(spans) + "</text>")

    def at_once(self, x: float, colour: str, text: str) -> None:
        self.text(x, colour, text, [self.time_s] * len(text))

    def block(self, label: str, colour: str, lines: list[tuple[str, list[float]]]) -> None:
        """One person's words or one answer, with whose it is beside the first line."""
        self.at_once(MARGIN, colour, label)
        for text, times in lines:
            self.text(MARGIN + LABEL_WIDTH, "you" if label == "you" else "text", text, times)
            self.y += LINE

    def note(self, text: str, colour: str = "note") -> None:
        self.at_once(MARGIN + LABEL_WIDTH, colour, text)
        self.y += LINE


def draw(saved: dict[str, Any]) -> str:
    stage, conversation, said_at = Stage(), 1, 0.0
    for event in saved["events"]:
        if event.get("conversation", conversation) != conversation:
            conversation = event["conversation"]
            stage.time_s += LOOK_S
            stage.y += LINE / 2
        if event["event"] == "say":
            said_at = event["at"]
            _draw_words(stage, event["text"], "new conversation" if conversation > 1 else "")
        elif event["event"] == "reply":
            _draw_reply(stage, event, said_at)
        elif text := _note(event):
            colour = "version" if event.get("status") == "serving" else "note"
            stage.note(f"{_duration(event['at'] - said_at)} later: {text}", colour)
            stage.time_s += STEP_S
    return _svg(stage, saved)


def _draw_words(stage: Stage, text: str, remark: str) -> None:
    begin = stage.time_s
    lines = wrap(text, [begin + TYPE_S * number for number in range(len(text))])
    stage.at_once(MARGIN + LABEL_WIDTH + (len(text) + 3) * COLUMN, "note", remark)
    stage.block("you", "you", lines)
    stage.y += LINE / 4
    stage.time_s = begin + TYPE_S * len(text)


def _draw_reply(stage: Stage, event: Event, said_at: float) -> None:
    text = "".join(piece for _, piece in event["pieces"])
    real = [at - said_at for at, piece in event["pieces"] for _ in piece] or [0.0]
    stage.time_s += min(THINK_S, real[0])
    shorter = min(1.0, STREAM_S / max(real[-1] - real[0], 0.001))
    times = [stage.time_s + shorter * (at - real[0]) for at in real]
    lines, version = wrap(text, times), event["version"]
    shown = lines if len(lines) <= MOST_LINES + 1 else lines[:MOST_LINES]
    label, colour = (f"version {version}", "version") if version else ("base", "base")
    stage.block(label, colour, shown)
    stage.time_s = times[-1] if shown is lines else shown[-1][1][-1]
    if shown is not lines:
        stage.note(f"… and {len(lines) - len(shown)} more lines: {len(text.split())} words in all")
    stage.time_s += LOOK_S
    stage.y += LINE / 2


def _note(event: Event) -> str:
    """What happened while the person waited."""
    if event["event"] == "verdict":
        return "understood as a complaint" if event["score"] < 0 else "not understood as a complaint"
    version = event["version"]
    return {
        "training": f"training version {version} …",
        "candidate": f"checking version {version} …",
        "serving": f"version {version} passed {event.get('checks', 0)} checks and answers from now on",
        "rejected": f"version {version} does not serve: {event.get('reason', '')}",
    }.get(event["status"], "")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def wrap(text: str, times: list[float]) -> list[tuple[str, list[float]]]:
    """Lines that fit, broken at spaces, each character with its time; empty lines are left out."""
    lines, begin = [], 0
    while begin < len(text):
        end = min(begin + COLUMNS, len(text))
        if (newline := text.find("\n", begin, end)) >= 0:
            end, after = newline, newline + 1
        elif end < len(text) and (space := text.rfind(" ", begin, end + 1)) > begin:
            end, after = space, space + 1
        else:
            after = end
        if text[begin:end].strip():
            lines.append((text[begin:end], times[begin:end]))
        begin = after
    return lines


def _svg(stage: Stage, saved: dict[str, Any]) -> str:
    loop_s, height = stage.time_s + HOLD_S, stage.y + 40
    frame = f'width="{WIDTH - 1}" height="{height - 1:.0f}" rx="10" fill="{BACK}" stroke="{FRAME}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="{SIZE}">',
        f"<title>{escape(_summary(saved))}</title>",
        f"<style>{_frames(stage, loop_s)}</style>",
        f'<rect x=".5" y=".5" {frame}/>',
        *(f'<circle cx="{cx}" cy="22" r="6" fill="{colour}"/>' for cx, colour in BUTTONS.items()),
        *stage.parts,
        f'<text x="{MARGIN}" y="{height - 16:.0f}" fill="{COLOURS["note"]}" font-size="11">'
        f"{escape(_caption(saved))}</text>",
    ]
    return "\n".join([*parts, "</svg>", ""])


def _frames(stage: Stage, loop_s: float) -> str:
    """One animation for each moment at which something appears. Without motion, all of it is there."""
    rules = []
    for tick in sorted(stage.ticks):
        share = 100 * tick * TICK_S / loop_s
        rules.append(f"@keyframes k{tick}{{0%{{visibility:hidden}}{share:.2f}%{{visibility:visible}}}}")
        rules.append(f".t{tick}{{animation:k{tick} {loop_s:.1f}s step-end infinite}}")
    return "\n".join([*rules, "@media (prefers-reduced-motion:reduce){tspan{animation:none!important}}"])


def _caption(saved: dict[str, Any]) -> str:
    busy = " (busy with other work)" if saved["load_before"] >= 1 else ""
    return f"One unedited run of {saved['model']} on {saved['machine']}{busy}. Long waits are shortened."


def _summary(saved: dict[str, Any]) -> str:
    """For readers who do not see the picture."""
    words = {"say": lambda e: f"you: {e['text']}", "reply": lambda e: f"version {e['version']}: {_start(e)}"}
    return " / ".join(words[e["event"]](e) for e in saved["events"] if e["event"] in words)


def _start(reply: Event) -> str:
    text = " ".join("".join(piece for _, piece in reply["pieces"]).split())
    return text if len(text) <= 120 else f"{text[:120]}…"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="record nothing; draw what is saved")
    if not parser.parse_args().draw:
        write_json(run())
    PICTURE.write_text(draw(json.loads(SAVED.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
