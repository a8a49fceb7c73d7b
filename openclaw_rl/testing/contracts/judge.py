"""The Judge protocol."""

from __future__ import annotations

from contextlib import suppress

import pytest

from openclaw_rl.types import Judge, JudgeCase, JudgeError, Message, Verdict

pytestmark = pytest.mark.asyncio

_ASKED: list[Message] = [{"role": "user", "content": "Name a river in France."}]
_REPLY: Message = {"role": "assistant", "content": "The Loire is a river in France."}
_FOLLOWED: dict[str, list[Message] | None] = {
    "praise": [{"role": "user", "content": "👍"}],
    "complaint": [{"role": "user", "content": "👎"}],
    "question": [{"role": "user", "content": "And in Spain?"}],
    "tool": [{"role": "tool", "tool_call_id": "1", "content": '{"ok": true}'}],
    "nothing": None,
}


class JudgeContract:
    """Fixture: ``judge``."""

    @pytest.mark.parametrize("what", _FOLLOWED)
    async def test_a_verdict_or_an_error_never_a_guess(self, judge: Judge, what: str) -> None:
        case = JudgeCase(_ASKED, _REPLY, _FOLLOWED[what])
        try:
            verdict = await judge.evaluate(case)
        except JudgeError:
            return
        assert isinstance(verdict, Verdict)
        assert verdict.score in (-1, 0, 1)
        assert 0 <= verdict.confidence <= 1
        assert verdict.source
        assert all(vote in (-1, 0, 1, None) for vote in verdict.votes)
        assert all(isinstance(hint, str) and hint for hint in verdict.hints)

    async def test_a_plain_case_gets_a_verdict(self, judge: Judge) -> None:
        assert isinstance(await judge.evaluate(JudgeCase(_ASKED, _REPLY, _FOLLOWED["complaint"])), Verdict)

    async def test_it_can_be_closed(self, judge: Judge) -> None:
        await judge.close()

    async def test_the_case_is_left_as_it_was(self, judge: Judge) -> None:
        case = JudgeCase([dict(m) for m in _ASKED], dict(_REPLY), [{"role": "user", "content": "Thanks!"}])
        with suppress(JudgeError):
            await judge.evaluate(case)
        assert case == JudgeCase(_ASKED, _REPLY, [{"role": "user", "content": "Thanks!"}])
