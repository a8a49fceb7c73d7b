"""Telegram's Bot API on loopback: what people write and react with comes out of ``getUpdates``."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Json = dict[str, Any]
BOT = {"id": 4242, "is_bot": True, "first_name": "Claw", "username": "claw_bot"}
TOKEN = "4242:test-token"


class Telegram:
    """One bot, and private chats with people, who are named by a number."""

    def __init__(self) -> None:
        self.sent: list[Json] = []
        self._updates: list[Json] = []
        self._messages = self._read = 0
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def say(self, who: int, text: str) -> None:
        message = {"date": int(time.time()), "from": _person(who), "chat": _chat(who), "text": text}
        self._update("message", {"message_id": self._number(), **message})

    def react(self, who: int, message_id: int, new: str | None, old: str | None = None) -> None:
        kinds = [[{"type": "emoji", "emoji": each}] if each else [] for each in (old, new)]
        self._update("message_reaction", {
            "chat": _chat(who), "message_id": message_id, "user": _person(who), "date": int(time.time()),
            "old_reaction": kinds[0], "new_reaction": kinds[1],
        })  # fmt: skip

    def replies(self, who: int) -> list[Json]:
        with self._changed:
            return [dict(message) for message in self.sent if message["chat"]["id"] == who]

    def everything_read(self) -> bool:
        """Whether the bot has confirmed the last update."""
        with self._changed:
            return self._read >= len(self._updates)

    def _update(self, kind: str, content: Json) -> None:
        with self._changed:
            self._updates.append({"update_id": len(self._updates) + 1, kind: content})
            self._changed.notify_all()

    def _number(self) -> int:
        with self._changed:
            self._messages += 1
            return self._messages

    def _answer(self, method: str, given: Mapping[str, Any]) -> Any:
        match method:
            case "getMe":
                return BOT
            case "getUpdates":
                return self._waiting(int(given.get("offset") or 0), float(given.get("timeout") or 0))
            case "sendMessage" | "sendRichMessage":
                return self._send(given)
            case "editMessageText":
                return self._edit(given)
            case "getWebhookInfo":
                return {"url": "", "has_custom_certificate": False, "pending_update_count": 0}
            case _:
                return True

    def _waiting(self, offset: int, timeout_s: float) -> list[Json]:
        with self._changed:
            self._read = max(self._read, offset - 1)
            self._changed.wait_for(lambda: len(self._updates) >= max(offset, 1), min(timeout_s, 2))
            return [update for update in self._updates if update["update_id"] >= offset]

    def _send(self, given: Mapping[str, Any]) -> Json:
        who = int(given["chat_id"])
        message = {"message_id": self._number(), "date": int(time.time()), "chat": _chat(who), "from": BOT}
        message["text"] = given.get("text", "")
        with self._changed:
            self.sent.append(message)
        return message

    def _edit(self, given: Mapping[str, Any]) -> Json:
        with self._changed:
            message = next(each for each in self.sent if each["message_id"] == int(given["message_id"]))
            message["text"] = given.get("text", "")
        return message

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                given = json.loads(body or b"{}") if body[:1] in (b"{", b"") else {}
                result = outer._answer(self.path.rpartition("/")[2].partition("?")[0], given)
                data = json.dumps({"ok": True, "result": result}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        return Handler


def _person(who: int) -> Json:
    return {"id": who, "is_bot": False, "first_name": f"Person{who}"}


def _chat(who: int) -> Json:
    return {"id": who, "type": "private", "first_name": f"Person{who}"}
