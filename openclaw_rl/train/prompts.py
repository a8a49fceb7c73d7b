"""Requests to teach a wish on: the one complained about, the user's others, and varied everyday requests.

A wish taught on a single request stays tied to its wording; taught on many it generalises to new requests.
Anchors are the opposite: jobs that no wish from a chat concerns (extraction for a program, code, JSON, a
router), with the base's own answers, so that a wish does not spread to them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import resources
from typing import Protocol

from openclaw_rl.messages import NOTE
from openclaw_rl.train.exam import gate_requests
from openclaw_rl.types import Ask, Message, Renderer, Tool, TurnRecord

log = logging.getLogger(__name__)
#: Longer requests would slow a step down; the one complained about is used at any length.
_MAX_PROMPT_TOKENS = 512
#: Share of the user's own requests, besides the one complained about; the rest are everyday ones.
_OWN_SHARE = 0.5
#: Share of questions with a known answer.
_QUESTION_SHARE = 0.25
_GATE_OTHERS = 24


class StoredRequest(Protocol):
    """The parts of a stored turn's request that determine its prompt."""

    @property
    def messages(self) -> list[Message]: ...

    @property
    def tools(self) -> list[Tool]: ...

    @property
    def thinking(self) -> bool | None: ...


class Prompts:
    """Prompts rebuilt from stored requests, with a hint appended to the user's last message."""

    def __init__(
        self,
        renderer: Renderer,
        stored_request: Callable[[TurnRecord], StoredRequest],
        is_ephemeral: Callable[[Message], bool],
    ) -> None:
        self._renderer, self._stored_request, self._is_ephemeral = renderer, stored_request, is_ephemeral

    def hinted(self, turn: TurnRecord, hint: str) -> list[int] | None:
        """None if the prompt cannot be rebuilt exactly: the hint would not be the only difference."""
        try:
            request = self._stored_request(turn)
            render = self._renderer.render
            plain = render(request.messages, request.tools, thinking=request.thinking)
            if turn.prompt_ids and plain != turn.prompt_ids:  # empty for an upstream model's turn
                return None
            messages = self._with_hint(request.messages, hint)
            if messages is None:
                return None
            return render(messages, request.tools, thinking=request.thinking)
        except ValueError as error:
            log.warning("rebuilding a turn's prompt failed: %s", type(error).__name__)
            return None

    def _with_hint(self, messages: list[Message], hint: str) -> list[Message] | None:
        if not hint:
            return messages
        for index in reversed(range(len(messages))):
            message = messages[index]
            if message["role"] == "user" and not self._is_ephemeral(message):
                content = f"{(message.get('content') or '').rstrip()}\n\n{hint}"
                return [*messages[:index], {**message, "content": content}, *messages[index + 1 :]]
        return None

    def asks(self, turn: TurnRecord, others: Sequence[TurnRecord], wish: str, number: int) -> list[Ask]:
        """``turn``'s request, some of the others, questions with a known answer, and everyday requests."""
        found = self._own([turn], wish, None)
        own = self._own(others, wish, _MAX_PROMPT_TOKENS)
        known = [ask.prompt_ids for ask in found]
        found += [ask for ask in own if ask.prompt_ids not in known][: int(_OWN_SHARE * number)]
        chance = random.Random(hashlib.sha256(turn.id.encode()).digest())
        found += self._questions(wish, chance)[: min(int(_QUESTION_SHARE * number), number - len(found))]
        everyday = _lines("requests.txt")
        chosen = chance.sample(everyday, min(len(everyday), max(0, number - len(found))))
        return [*found, *(self._plain(wish, text) for text in chosen)]

    def _questions(self, wish: str, chance: random.Random) -> list[Ask]:
        lines = _lines("questions.txt")
        asked = [line.split("|") for line in chance.sample(lines, len(lines))]
        return [replace(self._plain(wish, text), right=tuple(right.split("/"))) for text, right in asked]

    def _own(self, turns: Sequence[TurnRecord], wish: str, longest: int | None) -> list[Ask]:
        asks: list[Ask] = []
        for turn in turns:
            if longest is not None and (turn.tools or len(turn.prompt_ids) > longest):
                continue
            turn = self._without_note(turn)
            told = self.hinted(turn, wish)
            prompt = turn.prompt_ids or self.hinted(turn, "")
            if told is None or prompt is None or prompt in [ask.prompt_ids for ask in asks]:
                continue
            asks.append(Ask(prompt, told, self._asked(turn), turn.id))
        return asks

    def spoken(self, turn: TurnRecord) -> tuple[list[int], list[int]] | None:
        """Prompt and reply tokens of a turn stored as text; None unless the reply is plain, complete text."""
        said = str(turn.reply.get("content") or "")
        prompt = self.hinted(turn, "")
        if prompt is None or not said.strip() or turn.reply.get("tool_calls") or turn.finish_reason != "stop":
            return None
        request, reply = self._stored_request(turn), self._renderer.encode(said)
        told: list[Message] = [
            *request.messages, {"role": "assistant", "content": said}, {"role": "user", "content": "x"}
        ]  # fmt: skip
        whole = self._renderer.render(told, request.tools, thinking=request.thinking)
        # The token with which the chat template ends a reply.
        ends = (each for each in whole[len(prompt) + len(reply) :] if each in self._renderer.stop_ids)
        return prompt, [*reply, *([end] if (end := next(ends, None)) is not None else [])]

    def _without_note(self, turn: TurnRecord) -> TurnRecord:
        """The turn without its prompt note: what is learned has to hold without one."""
        if NOTE not in turn.params:
            return turn
        plain = replace(turn, params={name: value for name, value in turn.params.items() if name != NOTE})
        if not turn.prompt_ids:
            return plain
        request = self._stored_request(plain)
        prompt_ids = self._renderer.render(request.messages, request.tools, thinking=request.thinking)
        return replace(plain, prompt_ids=prompt_ids)

    def gate_asks(self, turns: Sequence[TurnRecord], wish: str, seed: int) -> list[Ask]:
        """The user's own requests, and some others that are never trained on."""
        own = self._own(turns, wish, _MAX_PROMPT_TOKENS)
        others = random.Random(seed).sample(gate_requests(), _GATE_OTHERS)
        return [*own, *(self._plain(wish, text) for text in others)]

    def _plain(self, wish: str, text: str) -> Ask:
        plain: list[Message] = [{"role": "user", "content": text}]
        told = self._with_hint(plain, wish) or plain
        return Ask(self._renderer.render(plain, []), self._renderer.render(told, []), text)

    def _asked(self, turn: TurnRecord) -> str:
        said = [m for m in self._stored_request(turn).messages if m["role"] == "user"]
        return next((m.get("content") or "" for m in reversed(said) if not self._is_ephemeral(m)), "")

    def anchors(self) -> list[Ask]:
        """Anchors, with no hint in either prompt."""
        made = [self._renderer.render(messages, []) for messages in map(json.loads, _lines("anchors.jsonl"))]
        return [Ask(prompt, prompt) for prompt in made]


def _lines(name: str) -> list[str]:
    text = resources.files(__package__).joinpath(name).read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]
