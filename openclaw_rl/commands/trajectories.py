"""Hand-written conversations as turns to learn from.

A line is one conversation: ``messages`` as in chat completions and, where known, ``score`` (-1 to 1, of its
last reply) and ``user``. Nobody here sampled these replies: their log-probs are scored with the base model,
and the turns are marked ``off_policy``, so no step takes them for a version's own.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import replace

from openclaw_rl.capture.events import CLOSED, FEEDBACK, NEXT_STATE, TurnEvent
from openclaw_rl.capture.serve_ledger import Delivery, Entry
from openclaw_rl.serve.auth import DEFAULT_USER
from openclaw_rl.types import (
    BASE_VERSION,
    OFF_POLICY,
    Engine,
    Json,
    Message,
    Renderer,
    SamplingParams,
    ScoreRequest,
    Token,
    TurnRecord,
)

_TOP = 8
_ROLES = ("system", "user", "assistant", "tool")


def read_conversations(text: str) -> list[Json]:
    """JSON, one conversation or a list of them, or one a line; ValueError that says which is at fault."""
    try:
        whole = json.loads(text)
        found = whole if isinstance(whole, list) else [whole]
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            found = [json.loads(line) for line in lines]
        except ValueError as error:
            raise ValueError(f"neither JSON nor JSON lines: {error}") from None
    for number, each in enumerate(found, 1):
        _check(each, number)
    return found


def _check(conversation: Json, number: int) -> None:
    messages = conversation.get("messages") if isinstance(conversation, dict) else None
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"conversation {number} has no 'messages', a list as in chat completions")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise ValueError(f"conversation {number}: a message's role is one of {', '.join(_ROLES)}")
        if not isinstance(message.get("content"), str):
            raise ValueError(f"conversation {number}: a message's content is a text")
    if not any(message["role"] == "assistant" and message["content"] for message in messages):
        raise ValueError(f"conversation {number} holds no reply of an assistant")
    score = conversation.get("score", 0)
    if isinstance(score, bool) or not isinstance(score, int | float) or not -1 <= score <= 1:
        raise ValueError(f"conversation {number}: score is {score!r}; it lies between -1 and 1")


async def score_conversations(
    conversations: Iterable[Json], engine: Engine, renderer: Renderer, fingerprint: str
) -> list[Entry]:
    """Every reply as a turn with exact log-probs of the base, and what became known of it."""
    return [entry for each in conversations for entry in await _score(each, engine, renderer, fingerprint)]


def session_of(conversation: Json) -> str:
    """The same words of the same person are the same session."""
    said = json.dumps([conversation.get("user"), conversation["messages"]], sort_keys=True)
    return f"imported-{hashlib.sha256(said.encode()).hexdigest()[:16]}"


async def _score(conversation: Json, engine: Engine, renderer: Renderer, fingerprint: str) -> list[Entry]:
    messages: list[Message] = conversation["messages"]
    user = str(conversation.get("user") or DEFAULT_USER)
    session_id = session_of(conversation)
    places = [i for i, m in enumerate(messages) if m["role"] == "assistant" and m["content"]]
    entries: list[Entry] = []
    before: str | None = None
    for place in places:
        turn_id, now = f"{session_id}-{place}", time.time()
        tokens, prompt_ids = await _tokens(messages, place, engine, renderer)
        turn = TurnRecord(
            turn_id, session_id, user, "chat", "main", messages[:place], None, {OFF_POLICY: True},
            messages[place], prompt_ids, tokens, SamplingParams(len(tokens)), BASE_VERSION, "stop", now,
            continues=before, fingerprint=fingerprint,
        )  # fmt: skip
        entries += [turn, Delivery(turn_id, True, now)]
        following = messages[place + 1 : next((p for p in places if p > place), len(messages))]
        if following:
            entries.append(TurnEvent(turn_id, NEXT_STATE, now, following))
        elif place == places[-1]:
            entries.append(TurnEvent(turn_id, CLOSED, now))
        if place == places[-1] and "score" in conversation:
            score = conversation["score"]
            entries.append(TurnEvent(turn_id, FEEDBACK, now, data={"score": (score > 0) - (score < 0)}))
        before = turn_id
    return entries


async def _tokens(
    messages: list[Message], place: int, engine: Engine, renderer: Renderer
) -> tuple[list[Token], list[int]]:
    """The reply's own tokens and the one that ends it, as the chat template writes a reply."""
    prompt_ids, said = renderer.render(messages[:place]), renderer.encode(messages[place]["content"])
    told = renderer.render([*messages[: place + 1], {"role": "user", "content": "x"}])
    end = next((each for each in told[len(prompt_ids) + len(said) :] if each in renderer.stop_ids), None)
    reply_ids = [*said, *([] if end is None else [end])]
    if len(prompt_ids) + len(reply_ids) > engine.context_length:
        raise ValueError(f"a conversation is longer than the model's {engine.context_length} tokens")
    scores = await engine.score(ScoreRequest([*prompt_ids, *reply_ids], len(prompt_ids), top_k=_TOP))
    rows = zip(reply_ids, scores.logprobs, scores.top_ids, scores.top_logprobs, strict=True)
    tokens = [Token(i, p, p, tuple(ids), tuple(ps), BASE_VERSION) for i, p, ids, ps in rows]
    tokens[-1] = replace(tokens[-1], finish_reason="stop")
    return tokens, prompt_ids
