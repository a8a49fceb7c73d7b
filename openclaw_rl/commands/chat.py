"""``openclaw-rl chat``: talk to the served model and give feedback."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable, Iterable
from typing import TextIO

from openclaw_rl.commands.client import ServerClient
from openclaw_rl.config import Config
from openclaw_rl.types import Json

HELP = (
    "/good, /bad, /fix TEXT (what it should have done), /new (conversation), /off (the record), /help, /quit"
)


def run(options: argparse.Namespace, config: Config) -> int:
    with ServerClient.chosen(options, config) as server:
        print(f"{server.get('/v1/status')['model']} at {server.url}. {HELP}", file=sys.stderr)
        Chat(server, sys.stdout, options.off_the_record).run(_lines())
    return 0


def _lines() -> Iterable[str]:
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            yield input(prompt)
        except EOFError:
            return


class Chat:
    def __init__(self, server: ServerClient, out: TextIO, off_the_record: bool = False) -> None:
        self._server, self._out, self._off = server, out, off_the_record
        self._commands: dict[str, Callable[[str], None]] = {
            "/good": lambda text: self._rate("up", ""),
            "/bad": lambda text: self._rate("down", text),
            "/fix": self._fix,
            "/new": lambda text: self._start(),
            "/off": lambda text: self._switch(),
            "/help": lambda text: self._say(HELP),
        }
        self._version: str | None = None
        self._start()

    def run(self, lines: Iterable[str]) -> None:
        for line in lines:
            word, _, rest = line.strip().partition(" ")
            if word in ("/quit", "/exit"):
                return
            try:
                if word in self._commands:
                    self._commands[word](rest.strip())
                elif word.startswith("/"):
                    self._say(f"unknown: {word}. {HELP}")
                elif word:
                    self._ask(line.strip())
            except ValueError as error:
                self._say(str(error))

    def _start(self) -> None:
        self._messages: list[Json] = []
        self._session, self._turn = f"chat-{secrets.token_hex(8)}", ""

    def _switch(self) -> None:
        """Starts a new conversation, since the current one would be the history of what follows."""
        self._off = not self._off
        self._start()
        self._say("[off the record: nothing is kept]" if self._off else "[on the record]")

    def _ask(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})
        body = {
            "model": "default",
            "messages": self._messages,
            "stream": True,
            "temperature": 0.7,
            "metadata": {"session_id": self._session},
        }
        said = ""
        try:
            stated = {"x-off-the-record": "1"} if self._off else {}
            with self._server.stream("/v1/chat/completions", body, stated) as (headers, events):
                self._note_version(headers.get("x-policy-version", "?"))
                for event in events:
                    if "error" in event:
                        raise ValueError(event["error"]["message"])
                    self._turn = event["id"]
                    for choice in event.get("choices", ()):
                        piece = choice["delta"].get("content") or ""
                        said += piece
                        self._out.write(piece)
                        self._out.flush()
        except ValueError:
            self._messages.pop()
            raise
        self._messages.append({"role": "assistant", "content": said})
        self._say("")

    def _note_version(self, version: str) -> None:
        if self._version is not None and version != self._version:
            self._say(f"[version {version} answers now, instead of {self._version}]")
        self._version = version

    def _fix(self, text: str) -> None:
        if not text:
            raise ValueError("say what it should have done: /fix Answer in one sentence.")
        self._rate("down", text)

    def _rate(self, rating: str, text: str) -> None:
        if not self._turn:
            raise ValueError("there is no reply yet")
        if self._off:
            raise ValueError("nothing is learned from what is off the record; /off changes that")
        self._server.post(
            "/v1/feedback", {"id": self._turn, "rating": rating, **({"text": text} if text else {})}
        )
        self._say("[noted]" if not text else "[noted; it will learn from this]")

    def _say(self, text: str) -> None:
        print(text, file=self._out, flush=True)
