"""What the model says when the test needs a certain thing to happen; ``--generate scripted:generate``.

A model of 135M parameters does not call the right tool when asked to. So for requests whose last message
holds one of the marks in ``SAYS``, a grammar leaves the engine only one reply. The tokens are still the
engine's own: it runs the whole prompt, and gives each token its log-prob. Every other reply is the model's,
except that it has to begin with a letter and hold no tag: what OpenClaw takes for the rest of a tool call is
not shown to the user, and it then asks again, which belongs to one test only.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import cache
from typing import Any

from openclaw_rl.models import DEFAULT_MODEL, default_cache_dir, resolve_model
from openclaw_rl.types import Engine, GenerateRequest, Token

_INTERNAL = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"


def _call(name: str, **arguments: Any) -> str:
    return f"<tool_call>[{json.dumps({'name': name, 'arguments': arguments})}]</tool_call>"


#: OpenClaw shows nothing of this.
SHOWS_NOTHING = "<tool_call>[0000-1-2-3"
_VISIBLE = r"start: /[A-Za-z][^<]*/"

#: A mark in the last message: the reply.
SAYS = {
    "Please write the note": _call("write", path="note.txt", content="7 apples\n"),
    "Please read the note": _call("read", path="note.txt"),
    "Please count the words": _call("exec", command="wc -w < note.txt"),
    "Please ask a helper": _call("sessions_spawn", task="Name one fruit.", label="fruit"),
    "Please look around": _call("exec", command="echo there is nothing to show"),
    "there is nothing to show": SHOWS_NOTHING,
    "did not produce a user-visible answer": "There is nothing here.",
}


async def generate(engine: Engine, request: GenerateRequest) -> AsyncIterator[Token]:
    last = _last_message(_tokenizer().decode(request.prompt_ids))
    # A summary brings along what was said; it is the model's.
    if request.grammar is None and "<conversation>" not in last:
        said = next((SAYS[mark] for mark in SAYS if mark in last), None)
        # Tags are ordinary text to this model, so one literal matches all of it.
        request = replace(request, grammar=f"start: {json.dumps(said)}\n" if said else f"{_VISIBLE}\n")
    async for token in engine.generate(request):
        yield token


def _last_message(prompt: str) -> str:
    """The last one that somebody said: not what OpenClaw injects for one request."""
    messages = prompt.split("<|im_start|>")[1:-1]
    return next((message for message in reversed(messages) if _INTERNAL not in message), "")


@cache
def _tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve_model(DEFAULT_MODEL, default_cache_dir()))
