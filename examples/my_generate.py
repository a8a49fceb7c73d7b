"""A custom generate function: sample two replies and return the one the model finds more likely.

    openclaw-rl serve --generate my_generate:best_of_two

The tokens must be the engine's own, with their log-probs: training learns from them. This function does not
stream, because it can only choose at the end.
"""

import asyncio
from collections.abc import AsyncIterator

from openclaw_rl.types import Engine, GenerateRequest, Token


async def best_of_two(engine: Engine, request: GenerateRequest) -> AsyncIterator[Token]:
    async def answer() -> list[Token]:
        return [token async for token in engine.generate(request)]

    replies = await asyncio.gather(answer(), answer())
    best = max(replies, key=lambda tokens: sum(token.logprob for token in tokens) / len(tokens))
    for token in best:
        yield token
