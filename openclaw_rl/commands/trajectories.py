"""Imported conversations as turns to train on.

These replies were not sampled here: their log-probs are scored with the base model, and the turns are marked
``off_policy``, so that no step treats them as a version's own. Replies with tool calls are history, not
turns, since the exact text of another model's calls is unknown.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import replace

from openclaw_rl.capture.events import CLOSED, FEEDBACK, NEXT_STATE, TurnEvent
from openclaw_rl.capture.serve_ledger import Delivery, Entry
from openclaw_rl.serve.auth import DEFAULT_USER
from openclaw_rl.types import (
    BASE_VERSION,
    EVERYONE,
    OFF_POLICY,
    Engine,
    Json,
    Message,
    Renderer,
    SamplingParams,
    Scope,
    ScoreRequest,
    Token,
    TurnRecord,
)

_TOP = 8


def session_of(conversation: Json) -> str:
    """Session id from a hash of user and messages: the same conversation is the same session."""
    said = json.dumps([conversation.get("user"), conversation["messages"]], sort_keys=True)
    return f"imported-{hashlib.sha256(said.encode()).hexdigest()[:16]}"


async def score_conversation(
    conversation: Json, engine: Engine, renderer: Renderer, fingerprint: str, scope: Scope = EVERYONE
) -> tuple[list[Entry], int]:
    """Its replies as turns with the base model's exact log-probs, and the events about each.

    Also the number of replies left out because they do not fit into the model's context.
    """
    messages: list[Message] = conversation["messages"]
    user, session_id = str(conversation.get("user") or DEFAULT_USER), session_of(conversation)
    scores: dict[int, float] = conversation.get("scores", {})
    places = [i for i, m in enumerate(messages) if _is_reply(m)]
    entries: list[Entry] = []
    before, left_out = None, 0
    for place in places:
        turn_id, now = f"{session_id}-{place}", time.time()
        if (scored := await _tokens(messages, place, engine, renderer)) is None:
            left_out += 1
            continue
        tokens, prompt_ids = scored
        turn = TurnRecord(
            turn_id, session_id, user, "chat", "main", messages[:place], None, {OFF_POLICY: True},
            messages[place], prompt_ids, tokens, SamplingParams(len(tokens)), BASE_VERSION, "stop", now,
            continues=before, fingerprint=fingerprint, scope=scope,
        )  # fmt: skip
        entries += [turn, Delivery(turn_id, True, now)]
        following = messages[place + 1 : next((p for p in places if p > place), len(messages))]
        following = following if any(m["role"] != "assistant" for m in following) else []
        if following:
            entries.append(TurnEvent(turn_id, NEXT_STATE, now, following))
        elif place == places[-1]:
            entries.append(TurnEvent(turn_id, CLOSED, now))
        if (score := scores.get(place)) is not None:
            entries.append(TurnEvent(turn_id, FEEDBACK, now, data={"score": (score > 0) - (score < 0)}))
        before = turn_id
    return entries, left_out


def _is_reply(message: Message) -> bool:
    return message["role"] == "assistant" and bool(message["content"]) and not message.get("tool_calls")


async def _tokens(
    messages: list[Message], place: int, engine: Engine, renderer: Renderer
) -> tuple[list[Token], list[int]] | None:
    """The reply's tokens and its end token, as the template writes them; None if too long."""
    prompt_ids, said = renderer.render(messages[:place]), renderer.encode(messages[place]["content"])
    told = renderer.render([*messages[: place + 1], {"role": "user", "content": "x"}])
    end = next((each for each in told[len(prompt_ids) + len(said) :] if each in renderer.stop_ids), None)
    reply_ids = [*said, *([] if end is None else [end])]
    if len(prompt_ids) + len(reply_ids) > engine.context_length:
        return None
    top_k = _TOP if engine.capabilities.top_logprobs else 0
    scores = await engine.score(ScoreRequest([*prompt_ids, *reply_ids], len(prompt_ids), top_k=top_k))
    rows = zip(reply_ids, scores.logprobs, scores.top_ids, scores.top_logprobs, strict=True)
    tokens = [Token(i, p, p, tuple(ids), tuple(ps), BASE_VERSION) for i, p, ids, ps in rows]
    tokens[-1] = replace(tokens[-1], finish_reason="stop")
    return tokens, prompt_ids
