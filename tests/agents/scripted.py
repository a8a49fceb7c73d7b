"""What the model says when an agent is to use a tool; ``--generate scripted:generate``.

As in ``tests/openclaw/scripted.py``: a grammar leaves the engine one reply to a message with a mark, since a
model of 135M parameters does not choose tools by itself. The tokens are the engine's own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import cache
from typing import Any

from openclaw_rl.models import DEFAULT_MODEL, default_cache_dir, resolve_model
from openclaw_rl.types import Engine, GenerateRequest, Token


def _call(name: str, **arguments: Any) -> str:
    return f"<tool_call>[{json.dumps({'name': name, 'arguments': arguments})}]</tool_call>"


#: A mark in the last message: the reply.
SAYS = {
    "Please add 17 and 25": _call("mcp__everything__get_sum", a=17, b=25),
    "The sum of 17 and 25 is 42": "Together they are 42.",
    "Please count the apples": _call("run_commands", commands=["wc -w note.txt"]),
    "2 note.txt": "There are 2 words.",
    "Thanks": "You are welcome.",
}


async def generate(engine: Engine, request: GenerateRequest) -> AsyncIterator[Token]:
    last = _tokenizer().decode(request.prompt_ids).split("<|im_start|>")[-2]
    said = next((SAYS[mark] for mark in SAYS if mark in last), None)
    if said is not None:
        request = replace(request, grammar=f"start: {json.dumps(said)}\n")
    async for token in engine.generate(request):
        yield token


@cache
def _tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve_model(DEFAULT_MODEL, default_cache_dir()))
