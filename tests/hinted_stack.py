"""A person who complains to the real ledgers, trainer and engine on a tiny network, with the default method.

That network only babbles, so a fake teacher gives the answers that are learned from.
"""

from __future__ import annotations

import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as sa

from openclaw_rl.algo.hinted import Hinted
from openclaw_rl.capture import schema
from openclaw_rl.capture.content import pack_ids
from openclaw_rl.capture.learn_ledger import metadata
from openclaw_rl.capture.normalise import is_ephemeral
from openclaw_rl.capture.sample_turns import sample_turns
from openclaw_rl.capture.samples import change_sources, samples
from openclaw_rl.capture.stored import stored_request
from openclaw_rl.judge.wishes import is_only_taking_back, is_wish, relation
from openclaw_rl.train.lessons import SampleMaker
from openclaw_rl.train.prompts import Prompts
from openclaw_rl.types import Answer, Json, Judge

from .learn.test_wishes import Complaints, Teacher
from .test_scopes import ANN, Stack


class Interrupted(Teacher):
    """Something happens while it answers for the first time."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._happens: Callable[[], object] | None = happens

    async def answer(self, prompt_ids: list[int], number: int, seed: int) -> list[Answer]:
        happens, self._happens = self._happens, None
        if happens is not None:
            happens()
        return await super().answer(prompt_ids, number, seed)


class HintedStack(Stack):
    settings: ClassVar[dict[str, Any]] = {
        "algo": "hinted",
        "algo_options": {"steps": 2, "step_examples": 4, "requests": 6, "keep": 1},
        "batch_size": 1,
    }

    def __init__(self, home: Path, model: Path) -> None:
        super().__init__(home, model, **self.settings)

    async def say(self, *said: str, user: str = "ann") -> tuple[str, list[str]]:
        """A conversation of this person's: its session, and its turns."""
        messages: list[Any] = []
        turns: list[str] = []
        session = ""
        for text in said:
            messages.append({"role": "user", "content": text})
            answer = await self.ask(user, messages)
            session = answer.headers["x-session-id"]
            turns.append(answer.json()["id"])
            messages.append(answer.json()["choices"][0]["message"])
        await self.judge()
        return session, turns

    async def judge(self, judge: Judge | None = None) -> None:
        """One conversation after the other, so that verdicts come in their order."""
        await self.system.gateway.drain()
        await super().judge(judge or Complaints())

    async def sample(self, teacher: Any = None) -> None:
        """All that was said becomes samples; no step is taken."""
        sampler = self.sampler(teacher)
        while await sampler.run():
            pass

    def sampler(self, teacher: Any = None) -> SampleMaker:
        prompts = Prompts(self.renderer, stored_request, is_ephemeral)
        wishes = self.policies.wishes(relation, is_only_taking_back, is_wish)
        algorithm = Hinted(requests=6, keep=1)
        return SampleMaker(self.policies, algorithm, teacher or Teacher(), prompts, wishes, 0.0)

    def wished(self) -> tuple[str, ...]:
        return self.policies.wishes(relation, is_only_taking_back, is_wish).texts("ann", ANN)

    def sampled(self) -> list[str]:
        with self.policies.db.connect() as connection:
            return list(connection.scalars(sa.select(samples.c.turn_id)))

    def hints(self) -> set[str | None]:
        """Of all samples that have examples."""
        return {e.source.hint for turn_id in self.sampled() for e in self.policies.examples_of(turn_id)}

    def forget_where_samples_came_from(self) -> None:
        def old(source: Json, prompt_ids: list[int] | None) -> Json:
            kept = {name: value for name, value in source.items() if name != "wish_ids"}
            return {**kept, "turn_ids": source["turn_ids"][:1]}

        with self.policies.db.begin() as connection:
            connection.execute(sample_turns.delete())
            query = sa.select(samples.c.turn_id, samples.c.data).where(samples.c.data.is_not(None))
            for row in connection.execute(query).all():
                mine = samples.c.turn_id == row.turn_id
                connection.execute(samples.update().where(mine).values(data=change_sources(row.data, old)))

    def copy(self, home: Path) -> HintedStack:
        """Another one with the same past."""
        for db in (self.system.ledgers.serve.db, self.system.ledgers.learn.db):
            db.dispose()
        shutil.copytree(self.config.home, home, ignore=shutil.ignore_patterns("keys.json"))
        return type(self)(home, self.model)

    def tables_with(self, text: str) -> set[str]:
        """Tables that hold a text, or its tokens, also inside what is compressed."""
        sought = (text.encode(), pack_ids(self.renderer.encode(text)))
        return {
            name
            for name, value in self._values()
            if any(each in form for form in _forms(value) for each in sought)
        }

    def _values(self) -> Iterator[tuple[str, Any]]:
        ledgers = self.system.ledgers
        for db, known in ((ledgers.serve.db, schema.metadata), (ledgers.learn.db, metadata)):
            with db.connect() as connection:
                for table in known.tables.values():
                    for row in connection.execute(sa.select(table)):
                        yield from ((table.name, value) for value in row)


def _forms(value: Any) -> list[bytes]:
    raw = value if isinstance(value, bytes) else str(value).encode()
    try:
        return [raw, zlib.decompress(raw)]
    except zlib.error:
        return [raw]


def counted(stack: HintedStack) -> Counter[str]:
    """Samples by what became of them, row by row."""
    query = sa.select(samples.c.status, samples.c.reason)
    with stack.policies.db.connect() as connection:
        rows = connection.execute(query).all()
    return Counter(f"{row.status}:{row.reason}" if row.reason else row.status for row in rows)
