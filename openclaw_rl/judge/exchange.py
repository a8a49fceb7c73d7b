"""A case as text: request, reply and next state, each neutralised and shortened.

The structure of the next state is kept (one entry per message, in order, with its role); only the middle of
long texts is cut, and of a very long next state.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from openclaw_rl.judge.guard import neutralise
from openclaw_rl.reactions import split_notices
from openclaw_rl.types import JudgeCase, Message

_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_QUOTE = re.compile(r"^[^\S\n]*>.*$", re.MULTILINE)
#: Agents without tool messages put a tool's output into user messages; text that people add has its own tag.
_OUTPUT = re.compile(
    r"^[^\S\n]*(?:\[\w+(?: for [^\n]{0,300})?\] Result:|(?:Observation|Tool (?:output|result)s?"
    r"|Command output|Function (?:output|result)s?):|"
    r"<(?:tool_response|tool_results?|function_results?|observation)>).*\Z",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
#: Characters of one message that are read: how somebody reacts stands at its beginning or end, and reading
#: more takes seconds.
_MOST_CHARS = 12_000
#: Messages of a next state that are read, and characters of all that users wrote, and of all others.
_MOST_MESSAGES, _MOST_SAID, _MOST_RESULTS = 64, 16_000, 96_000
_FEEDBACK = re.compile(r"<(feedback|user_message|answer)>(.*?)</\1>", re.DOTALL)


def text_of(message: Message) -> str:
    """The message's text; other content parts appear as their type."""
    content: Any = message.get("content") or ""
    if isinstance(content, str):
        return content
    parts = [part if isinstance(part, dict) else {"text": str(part)} for part in content]
    return "\n".join(str(part.get("text") or f"({part.get('type', 'part')})") for part in parts)


def bounded(text: str, most: int = _MOST_CHARS) -> str:
    """Without the middle, if it is very long."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}\n...\n{text[-half:]}"


def bounded_case(case: JudgeCase) -> JudgeCase:
    """With as much of the next state as can be read without delaying everything else."""
    state, half = case.next_state or [], _MOST_MESSAGES // 2
    kept = state if len(state) <= _MOST_MESSAGES else [*state[:half], *state[-half:]]
    for is_said, most in ((True, _MOST_SAID), (False, _MOST_RESULTS)):
        which = [n for n, message in enumerate(kept) if (message.get("role") == "user") == is_said]
        if sum(min(len(text_of(kept[n])), _MOST_CHARS) for n in which) > most:
            share = most // len(which)
            shorter = {n: {**kept[n], "content": bounded(text_of(kept[n]), share)} for n in which}
            kept = [shorter.get(n, message) for n, message in enumerate(kept)]
    return case if kept is state else replace(case, next_state=kept)


def shorten(text: str, max_chars: int) -> str:
    """One line with the head and the tail, since the end of a text often holds its point."""
    line = " ".join(text.split())
    if len(line) <= max_chars:
        return line
    tail = max_chars * 2 // 5
    return f"{line[: max_chars - tail - 5].rstrip()} ... {line[-tail:].lstrip()}"


def own_words(text: str) -> str:
    """A user's text without code and quotations."""
    return _QUOTE.sub(" ", _CODE.sub(" ", text))


def split_output(message: Message) -> tuple[str, str]:
    """(A person's text, a tool's output) in a message."""
    text = bounded(text_of(message))
    if message.get("role") != "user":
        return "", text
    if (output := _OUTPUT.search(text)) is None:
        return text, ""
    feedback = [said for _, said in _FEEDBACK.findall(output.group())]
    return "\n".join([text[: output.start()], *feedback]).strip(), output.group()


@dataclass(frozen=True)
class CaseTexts:
    """The neutralised texts of one case."""

    case: JudgeCase

    @cached_property
    def request(self) -> str:
        users = [message for message in self.case.messages if message.get("role") == "user"]
        return neutralise(bounded(text_of(users[-1]))) if users else ""

    @cached_property
    def calls(self) -> list[tuple[str, str]]:
        return [
            (str(call.get("name", "")), str(call.get("arguments", "")))
            for call in self.case.reply.get("tool_calls") or ()
        ]

    @cached_property
    def reply(self) -> str:
        return neutralise(bounded(text_of(self.case.reply)), "assistant")

    @cached_property
    def results(self) -> list[str]:
        """Everything that no person wrote: tool results and other observations."""
        states = self.case.next_state or []
        outputs = [(message, split_output(message)[1]) for message in states]
        return [
            neutralise(text, "tool") for message, text in outputs if text or message.get("role") != "user"
        ]

    @cached_property
    def user_text(self) -> str:
        states = self.case.next_state or []
        said = [split_output(message)[0] for message in states if message.get("role") == "user"]
        texts = [neutralise(split_notices(text)[0]) for text in said]
        return "\n".join(text for text in texts if text)

    @cached_property
    def notices(self) -> list[str]:
        """Notices of reactions in user messages; each is about the message that it names."""
        users = [message for message in self.case.next_state or () if message.get("role") == "user"]
        return [notice for message in users for notice in split_notices(split_output(message)[0])[1]]

    @property
    def has_user(self) -> bool:
        """Whether a person said something; a tool's output in a user message does not count."""
        users = [split_output(m) for m in self.case.next_state or () if m.get("role") == "user"]
        return any(bool(split_notices(said)[0]) if said else not output for said, output in users)

    def reply_line(self, max_chars: int) -> str:
        calls = " ".join(f"{name} {arguments}" for name, arguments in self.calls)
        return shorten(f"{self.reply} {calls}", max_chars) or "(nothing)"

    def results_line(self, max_chars: int) -> str:
        share = max(40, max_chars // max(1, len(self.results)))
        lines = [shorten(text, share) or "(empty)" for text in self.results]
        return shorten(" | ".join(lines), max_chars * 2) if lines else "(nothing)"
