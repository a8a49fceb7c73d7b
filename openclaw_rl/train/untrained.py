"""Without training: every judged turn still records why it was not trained on."""

from __future__ import annotations

import asyncio
from functools import partial

from openclaw_rl.train.queues import VerdictQueue

_PAGE = 50


async def settle_untrained(verdicts: VerdictQueue, reason: str, poll_s: float = 0.5) -> None:
    """Run until cancelled."""
    while True:
        pending = await asyncio.to_thread(verdicts.pending, _PAGE)
        for seq, turn_id in pending:
            found = await asyncio.to_thread(verdicts.judged, turn_id)
            if found is None:
                await asyncio.to_thread(verdicts.skip, seq)
            else:
                given = None if not found[1].trainable else reason
                await asyncio.to_thread(partial(verdicts.settle, seq, *found, reason=given))
        if not pending:
            await asyncio.sleep(poll_s)
