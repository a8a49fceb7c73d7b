"""The labelled cases in the package, and the prompts made from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from openclaw_rl.judge.exchange import CaseTexts, shorten
from openclaw_rl.types import JudgeCase

NUM_SETS = 3
CONTEXT_CHARS, STATE_CHARS = 140, 280
#: Only the hidden state at their end is read: no examples, different wording.
_PLAIN = {
    "user": "User: {request}\nAssistant: {reply}\nUser: {next}\n\nIn short, the user is",
    "tool": "Task: {request}\nAction: {reply}\nResult: {next}\n\nIn short, the action was",
}


@dataclass(frozen=True, slots=True)
class FewShotSet:
    """A template with its labels (for +1, 0, −1), the words to score, and solved examples."""

    labels: tuple[str, str, str]
    words: tuple[str, ...]
    prefix: str
    template: str

    def case_text(self, exchange: CaseTexts) -> str:
        return fill(self.template, exchange)


def fill(template: str, exchange: CaseTexts) -> str:
    if exchange.has_user:
        context = f"({exchange.results_line(60)}) " if exchange.results else ""
        state = context + (shorten(exchange.user_text, STATE_CHARS) or "(nothing)")
    else:
        state = exchange.results_line(STATE_CHARS)
    fields = {
        "request": shorten(exchange.request, CONTEXT_CHARS) or "(nothing)",
        "reply": exchange.reply_line(CONTEXT_CHARS),
        "next": state,
    }
    for name, value in fields.items():
        template = template.replace("{" + name + "}", value.replace("{", "(").replace("}", ")"))
    return template


def read_cases(name: str) -> list[dict[str, Any]]:
    """Labelled cases from the package: ``train``, ``test`` or ``injection``."""
    text = (files("openclaw_rl.judge") / "cases" / f"{name}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def case_of(row: dict[str, Any]) -> JudgeCase:
    """One labelled row as a case; ``reply`` may be a text or a message."""
    reply = row["reply"]
    message = {"role": "assistant", "content": reply} if isinstance(reply, str) else dict(reply)
    state = row.get("next_state")
    return JudgeCase(
        messages=list(row["messages"]),
        reply=message,
        next_state=None if state is None else list(state),
        finish_reason=row.get("finish_reason", "stop"),
        regenerated=bool(row.get("regenerated", False)),
    )


@cache
def few_shot_set(kind: str, number: int, name: str = "") -> FewShotSet:
    """Set ``number`` (from 1) for next states with a ``user`` message or with only ``tool`` results.

    ``name`` is the file with labels, words, introduction and template, if not the set's own.
    """
    file = f"{name or f'label_{kind}_{number}'}.txt"
    text = (files("openclaw_rl.judge") / "prompts" / file).read_text("utf-8")
    first, words, intro, template = text.strip().split("\n", 3)
    positive, neutral, negative = (label.strip() for label in first.split("|"))
    labels = {1: positive, 0: neutral, -1: negative}
    shots = [
        f"{fill(template, exchange)} {labels[row['label']]}"
        for row in read_cases("train")
        if f"shot-{number}" in row["tags"]
        and (exchange := CaseTexts(case_of(row))).has_user == (kind == "user")
    ]
    prefix = "\n\n".join([*([intro] if intro else []), *shots, ""])
    return FewShotSet((positive, neutral, negative), tuple(words.split()), prefix, template)


def state_prompts(kind: str, number: int, exchange: CaseTexts) -> list[tuple[str, str]]:
    """(constant prefix, text) of prompts that show both the reply and the reaction."""
    prompts = [("", fill(_PLAIN[kind], exchange))]
    if kind == "user":  # the label prompts for tool results already show the reply
        shots = few_shot_set(kind, number, "context_user")
        prompts.append((shots.prefix, shots.case_text(exchange)))
    return prompts
