"""Reactions in a Telegram chat, through the real OpenClaw with our plugin, to the replies they are about."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openclaw_rl import connect
from openclaw_rl.connect.client import ServerAddress
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, scripted_system, wait_until
from tests.listening import listening
from tests.openclaw.client import OpenClaw, install
from tests.openclaw.telegram import TOKEN, Telegram

pytestmark = pytest.mark.openclaw


class Chat:
    """One server with a scripted engine, one OpenClaw, one bot."""

    def __init__(self, system: ServingSystem, telegram: Telegram) -> None:
        self.system, self.telegram = system, telegram

    def ask(self, who: int, text: str, reply: str) -> int:
        """The id of the message that shows the reply."""
        assert isinstance(self.system.engine, ScriptedEngine)
        before = len(self.telegram.replies(who))
        self.system.engine.say(reply)
        self.telegram.say(who, text)
        wait_until(lambda: len(self.telegram.replies(who)) > before or None, "the bot replies", 120)
        return int(self.telegram.replies(who)[-1]["message_id"])

    def scores(self) -> dict[str, list[int]]:
        """Reply -> its ratings."""
        turns = [turn for session, _ in self.system.ledgers.serve.iter_sessions() for turn in session]
        feedback: Callable[[str], Any] = self.system.dashboard.feedback_of
        return {str(turn.reply["content"]): [each["score"] for each in feedback(turn.id)] for turn in turns}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory, require: Callable[[str, str], Path]) -> Iterator[Chat]:
    assert require("npm", "npm")
    folder = tmp_path_factory.mktemp("reactions")
    system = scripted_system(folder / "home")
    assert isinstance(system.engine, ScriptedEngine)
    system.engine.context_length = 1_000_000
    with listening(system) as url, Telegram() as telegram:
        server: Any = SimpleNamespace(home=folder / "home", url=url)
        claw = OpenClaw(folder / "claw", install(), server)
        settings = claw._users_settings(["read"])
        bot = {
            "enabled": True,
            "botToken": TOKEN,
            "apiRoot": telegram.url,
            "dmPolicy": "open",
            "allowFrom": ["*"],
        }
        claw.settings.write_text(json.dumps({**settings, "channels": {"telegram": bot}}))
        address = ServerAddress(url, system.keys.key_of("default"), "scripted", 256, 32_768)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPENCLAW_STATE_DIR", str(claw.state))
            patch.setenv("OPENCLAW_CONFIG_PATH", str(claw.settings))
            connect.run("openclaw", address, lambda _: None, home=folder, write=True)
        claw.run("config", "validate")
        try:
            claw.start()
            yield Chat(system, telegram)
        finally:
            claw.stop()


def test_each_reaction_reaches_the_reply_of_its_message(chat: Chat) -> None:
    texts = ["The **first** reply, in full.", "The second reply, in full.", "The third one."]
    first, second, _ = [chat.ask(77, f"Question {number}", text) for number, text in enumerate(texts)]
    chat.telegram.react(77, first, "👍")
    chat.telegram.react(77, second, "👎")
    chat.telegram.react(77, second, "❤", "👎")
    chat.telegram.react(77, 9999, "👎")
    chat.telegram.react(77, second + 1, "👎")
    wait_until(lambda: chat.telegram.everything_read() or None, "the bot has read the reactions")
    chat.ask(77, "Go on.", "The fourth reply.")
    expected = {texts[0]: [1], texts[1]: [-1, 1], texts[2]: [], "The fourth reply.": []}
    wait_until(lambda: chat.scores() == expected or None, f"{chat.scores()} becomes {expected}")


def test_a_late_reaction_and_one_from_another_chat(chat: Chat) -> None:
    """In one session OpenClaw has both chats, so the message's number must not decide alone."""
    theirs = chat.ask(88, "Hello from me", "A reply to the other person.")
    mine = chat.telegram.replies(77)[0]["message_id"]
    chat.telegram.react(88, mine, "👎")
    chat.telegram.react(88, theirs, "🔥")
    wait_until(lambda: chat.telegram.everything_read() or None, "the bot has read the reactions")
    chat.ask(88, "And on.", "The last reply.")
    expected = {"A reply to the other person.": [1], "The last reply.": []}
    wait_until(lambda: expected.items() <= chat.scores().items() or None, f"{expected} in {chat.scores()}")
