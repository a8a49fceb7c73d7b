"""From a fresh OpenClaw to changed answers, with the real client; also draws it as a terminal session.

A simulated user talks to OpenClaw and wants short answers. They say so in words; nothing is rated or
restarted. The same held-out questions are asked before and after.

    python -m bench.openclaw [--conversations 10] [--minutes 30]

OpenClaw has one tool here, and the plugin's short system prompt instead of its own: what a model with 135M
parameters can follow. Writes docs/results/openclaw.json and docs/img/openclaw.svg: the commands that were run
and their output, shortened to fit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import httpx

from bench.learn import ASKED, COMPLAINTS, HELD_OUT, THANKS, is_short, mean_words
from openclaw_rl.processes.server_process import UNREMINDED
from openclaw_rl.testing import ServerProcess, clean_environment, command
from tests.openclaw.client import OpenClaw, free_port, install

DOCS = Path(__file__).parent.parent / "docs"
QUESTIONS = HELD_OUT[:4]
#: What OpenClaw appends to a reply that reached the token limit.
_CUT = "⚠️ Reply truncated"
#: Lines of the configuration change that the picture shows.
_SHOWN = ("baseUrl", '"primary"', "openclaw-rl-plugin/index.js: ")


def _command(question: str) -> list[str]:
    return ["agent", "--agent", "main", "--message", question]


class Person:
    """A simulated user who wants short answers."""

    def __init__(self, server: ServerProcess, claw: OpenClaw) -> None:
        self.server, self.claw, self.asked = server, claw, 0

    def ask(self, who: str, text: str) -> str:
        return self.claw.ask(who, text).partition(_CUT)[0].strip()

    def answers(self) -> list[str]:
        """Answers to the held-out questions by OpenClaw's own command, each in its own session."""
        self.asked += 1
        return [
            self.claw.run(*_command(text), "--session-id", f"asks-{self.asked}-{number}")
            .partition(_CUT)[0]
            .strip()
            for number, text in enumerate(QUESTIONS)
        ]

    def converse(self, number: int) -> None:
        reply = self.ask(f"chat-{number}", ASKED[number % len(ASKED)])
        for _ in range(2):
            if is_short(reply):
                break
            reply = self.ask(f"chat-{number}", COMPLAINTS[number % len(COMPLAINTS)])
        if is_short(reply):
            self.ask(f"chat-{number}", THANKS[number % len(THANKS)])

    def status(self) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.server.key}"}
        return httpx.get(f"{self.server.url}/v1/status", headers=headers, timeout=60).json()  # type: ignore[no-any-return]

    def version_line(self) -> str:
        said = subprocess.run(
            [command(), "status"],
            env=clean_environment(self.server.home),
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        return next((line.strip() for line in said.splitlines() if "version" in line), said)

    def wait(self, until: float) -> None:
        headers = {"authorization": f"Bearer {self.server.key}"}
        httpx.post(f"{self.server.url}/v1/flush", headers=headers, timeout=60)
        time.sleep(2)
        while self.status()["busy"] and time.monotonic() < until:
            time.sleep(2)


def run(folder: Path, conversations: int, minutes: float) -> dict[str, Any]:
    started = time.monotonic()
    server = ServerProcess(folder / "home", *UNREMINDED, environment={"PORT": str(free_port())})
    with server:
        claw = OpenClaw(folder / "claw", install(), server, max_tokens=96)
        claw.set_up(plugin=True, tools=("read",), short=True)
        claw.start()
        try:
            person = Person(server, claw)
            before = person.answers()
            print(f"before: {mean_words(before):.0f} words", flush=True)
            for number in range(conversations):
                if time.monotonic() - started > 60 * minutes:
                    break
                person.converse(number)
                print(f"{number + 1} conversations, version {person.status()['policy_version']}", flush=True)
            person.wait(started + 60 * minutes)
            after, status, line = person.answers(), person.status(), person.version_line()
            print(f"after: {mean_words(after):.0f} words, version {status['policy_version']}", flush=True)
        finally:
            claw.stop()
    return {
        "questions": QUESTIONS,
        "before": before,
        "after": after,
        "conversations": number + 1,
        "version": status["policy_version"],
        "version_line": line,
        "connect": [
            line.replace(str(claw.state), "~/.openclaw")
            for line in claw.connected.splitlines()
            if any(word in line for word in _SHOWN)
        ],
        "minutes": (time.monotonic() - started) / 60,
    }


# --- the picture -----------------------------------------------------------------------------

WIDTH, LINE, COLUMNS = 860, 19, 98
INK, DIM, PROMPT, PAPER = "#e6e6e6", "#8b949e", "#7ee787", "#0d1117"


def terminal(result: dict[str, Any]) -> str:
    """The commands and their output, drawn as a terminal window."""
    lines: list[tuple[str, str]] = []

    def typed(text: str) -> None:
        lines.append(("$ " + text, PROMPT))

    def said(text: str, at_most: int = 2) -> None:
        wrapped = textwrap.wrap(" ".join(text.split()), COLUMNS - 2)
        for line in wrapped[:at_most] + (["…"] if len(wrapped) > at_most else []):
            lines.append(("  " + line, INK))

    typed("openclaw-rl connect openclaw --write")
    lines.extend((f"  {line}"[:COLUMNS], DIM) for line in result["connect"])
    for number in range(len(QUESTIONS)):
        typed(f'openclaw agent --agent main --message "{result["questions"][number]}"')
        said(result["before"][number])
    told = f'"{COMPLAINTS[3]}"'
    lines.append(("", INK))
    lines.append((f"  … {result['conversations']} conversations in which somebody says {told} …", DIM))
    lines.append(("", INK))
    typed("openclaw-rl status | grep version")
    said(result["version_line"])
    for number in range(len(QUESTIONS)):
        typed(f'openclaw agent --agent main --message "{result["questions"][number]}"')
        said(result["after"][number])
    height = 44 + LINE * len(lines) + 14
    rows = "\n".join(
        f'<text x="20" y="{56 + LINE * row}" fill="{colour}" xml:space="preserve">{escape(text)}</text>'
        for row, (text, colour) in enumerate(lines)
    )
    dots = "".join(
        f'<circle cx="{22 + 18 * i}" cy="20" r="6" fill="{colour}"/>'
        for i, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13.5">'
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="{PAPER}"/>{dots}\n{rows}\n</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--draw-only", action="store_true")
    options = parser.parse_args()
    figures = DOCS / "results" / "openclaw.json"
    if not options.draw_only:
        with tempfile.TemporaryDirectory() as folder:
            result = run(Path(folder), options.conversations, options.minutes)
        figures.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    (DOCS / "img" / "openclaw.svg").write_text(terminal(json.loads(figures.read_text())))


if __name__ == "__main__":
    main()
