"""Which task comes next: those at which some attempts succeed and others fail are drawn more often.

A group whose attempts all end alike teaches nothing. Success is counted by template; what is too easy or too
hard now keeps a small share, since that changes as the agent learns. Tasks of one template, and those that
name none, come in shuffled rounds.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from openclaw_rl.types import Task

#: What a group tells of its template fades by this factor with each group after it.
_MEMORY = 0.8
#: Before anything is known: half of the attempts succeed.
_PRIOR = (0.5, 1.0)
_LEAST_WEIGHT = 0.05


class Curriculum:
    """Deterministic for the same seed and results."""

    def __init__(
        self, tasks: Sequence[Task], attempts: int, seed: int, earlier: Iterable[tuple[str, int, int]] = ()
    ) -> None:
        """``earlier``: groups of a run that goes on, as for ``note``."""
        self._attempts, self._seed = attempts, seed
        self._tasks: dict[str, list[Task]] = defaultdict(list)
        for task in tasks:
            self._tasks[_kind(task)].append(task)
        self._kind_of = {task.id: _kind(task) for task in tasks}
        self._results = dict.fromkeys(self._tasks, _PRIOR)
        """Kind -> attempts that succeeded and attempts, the newest counting most."""
        self._drawn = dict.fromkeys(self._tasks, 0)
        for task_id, solved, of in earlier:
            self.note(task_id, solved, of)
            if (kind := self._kind_of.get(task_id)) is not None:
                self._drawn[kind] += 1

    def note(self, task_id: str, solved: int, of: int) -> None:
        """A group's result: attempts that succeeded, and all whose outcome is known.

        A group of which nothing is known changes nothing; many of them would fade all there is to nothing.
        """
        if of and (kind := self._kind_of.get(task_id)) is not None:
            before, tried = self._results[kind]
            self._results[kind] = _MEMORY * before + solved, _MEMORY * tried + of

    def weight(self, kind: str) -> float:
        """The chance that attempts at such a task end differently."""
        solved, tried = self._results[kind]
        share = solved / tried
        alike: float = share**self._attempts + (1 - share) ** self._attempts
        return max(_LEAST_WEIGHT, 1 - alike)

    def tasks(self, first: int, end: int) -> Iterator[Task]:
        """The tasks from number ``first`` on."""
        kinds = list(self._tasks)
        for number in range(first, end):
            chance = random.Random(f"{self._seed} {number}")
            yield self._next_of(chance.choices(kinds, [self.weight(kind) for kind in kinds])[0])

    def _next_of(self, kind: str) -> Task:
        """Its tasks in shuffled rounds."""
        tasks = self._tasks[kind]
        round_, place = divmod(self._drawn[kind], len(tasks))
        self._drawn[kind] += 1
        return random.Random(f"{self._seed} {kind} {round_}").sample(tasks, len(tasks))[place]


def _kind(task: Task) -> str:
    return str(task.data.get("template", ""))
