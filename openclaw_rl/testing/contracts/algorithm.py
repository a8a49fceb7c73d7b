"""The Algorithm protocol."""

from __future__ import annotations

import json

import numpy as np
import pytest

from openclaw_rl.types import (
    Algorithm,
    Answer,
    Ask,
    Example,
    IntArray,
    Json,
    Lesson,
    Needs,
    SamplingParams,
    Standing,
    Teaching,
    Token,
    TurnRecord,
    Verdict,
)

pytestmark = pytest.mark.asyncio
_VERDICTS = {
    "praise": Verdict(1, 1.0, "votes"),
    "complaint": Verdict(-1, 1.0, "votes"),
    "hinted complaint": Verdict(-1, 0.8, "votes", hints=("Say less.", "Be brief.")),
    "neither": Verdict(0, 1.0, "votes"),
}


def lesson(verdict: Verdict, length: int = 4, hinted: bool = True) -> Lesson:
    """A short turn; ``hinted``: whether its prompt can be rebuilt with a hint."""
    tokens = [
        Token(10 + i, -0.5, -0.4, tuple(range(10 + i, 18 + i)), tuple(-0.5 - k for k in range(8)), 0)
        for i in range(length)
    ]
    turn = TurnRecord(
        "t1", "s1", "ann", "chat", "main", [], None, {}, {}, [1, 2, 3], tokens,
        SamplingParams(16), 0, "stop", 0.0,
    )  # fmt: skip
    asks = [Ask([1, 2, 3, n], [1, 2, 3, n, 4]) for n in range(5, 8)] if hinted else []
    return Lesson(
        turn,
        verdict,
        lambda hint: [1, 2, 3, 4] if hinted else None,
        wishes=verdict.hints[:1],
        asks=lambda wish, number: asks[:number],
        standing=Standing(verdict.score, (1.0, 0.0, -1.0), verdict.score, (1.0, 0.0, -1.0)),
    )


class FakeTeacher:
    """Finds every reply token less likely, prefers other tokens, and can generate answers."""

    async def score(self, prompt_ids: list[int], reply_ids: list[int], ids_NK: IntArray) -> Teaching:
        rows = len(reply_ids)
        top = np.tile(np.arange(50, 58, dtype=np.int32), (rows, 1))
        chances = np.tile(-0.2 - np.arange(8, dtype=np.float32), (rows, 1))
        return Teaching(np.full(ids_NK.shape, -1.5, np.float32), top, chances)

    async def answer(self, prompt_ids: list[int], number: int, seed: int) -> list[Answer]:
        return [self._answer((seed + n) % 10) for n in range(number)]

    def _answer(self, first: int) -> Answer:
        ids = [20 + first, 31, 32]
        top = np.array([[i, 50, 51] for i in ids], np.int32)
        chances = np.tile(np.log(np.array([0.5, 0.3, 0.1], np.float32)), (len(ids), 1))
        return Answer(ids, [-0.7] * len(ids), top, chances, f"answer {first} it is", finished=True)

    def encode(self, text: str, *, ends: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    async def mean_logprob(self, prompt_ids: list[int], reply_ids: list[int]) -> float:
        return -1.5 - reply_ids[0] / 100

    def degenerate(self, text: str) -> bool:
        return False


async def learn(algorithm: Algorithm, verdict: str, hinted: bool = True) -> list[Example]:
    return await algorithm.examples(lesson(_VERDICTS[verdict], hinted=hinted), FakeTeacher())


class AlgorithmContract:
    """Fixture: ``algorithm``."""

    async def test_it_says_what_it_needs(self, algorithm: Algorithm) -> None:
        assert isinstance(algorithm.needs, Needs)
        assert algorithm.needs.loss
        assert algorithm.needs.batch_size >= 1

    async def test_something_teaches(self, algorithm: Algorithm) -> None:
        assert [made for verdict in _VERDICTS for made in await learn(algorithm, verdict)]

    @pytest.mark.parametrize("verdict", _VERDICTS)
    async def test_an_example_has_a_signal_for_every_token(self, algorithm: Algorithm, verdict: str) -> None:
        for made in await learn(algorithm, verdict):
            assert made.ids_NK.shape == made.old_NK.shape == made.signal_NK.shape
            assert len(made.ids_NK) == len(made.reply_ids) > 0
            assert made.ids_NK[:, 0].tolist() == made.reply_ids, "the reply's own token comes first"
            assert np.isfinite(made.signal_NK).all()
            assert made.source.turn_ids == ("t1",)
            assert 0 <= made.strength <= 1

    async def test_what_nobody_felt_strongly_about_teaches_nothing(self, algorithm: Algorithm) -> None:
        assert await learn(algorithm, "neither") == []

    async def test_a_prompt_that_cannot_be_rebuilt_is_no_error(self, algorithm: Algorithm) -> None:
        for verdict in _VERDICTS:
            await learn(algorithm, verdict, hinted=False)

    async def test_a_batch_holds_every_example(self, algorithm: Algorithm) -> None:
        given = [made for verdict in _VERDICTS for made in await learn(algorithm, verdict)]
        state: Json = {}
        batch = algorithm.batch(given, state)
        assert len(batch.examples) == len(given)
        assert [made.reply_ids for made in batch.examples] == [made.reply_ids for made in given]
        assert callable(batch.loss) or batch.loss == algorithm.needs.loss
        assert batch.scale > 0
        assert json.loads(json.dumps(state)) == state, "it is kept with the weights"
