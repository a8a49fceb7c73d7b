"""The tuner against machines that are quiet, crowded, and quiet again."""

from __future__ import annotations

from collections.abc import Callable

from openclaw_rl.engine.threads import ThreadTuner


class Machine:
    """Steps take as long as the number of threads and the neighbours say."""

    def __init__(self, most: int) -> None:
        self.threads = most
        self.tuner = ThreadTuner(most, self.set_threads)
        self.now = 0.0

    def set_threads(self, number: int) -> None:
        self.threads = number

    def run(self, steps: int, cost_s: Callable[[int], float], rows: int = 1) -> dict[int, int]:
        """How many steps were run with how many threads."""
        used: dict[int, int] = {}
        for _ in range(steps):
            self.tuner.before(rows)
            used[self.threads] = used.get(self.threads, 0) + 1
            self.now += cost_s(self.threads)
            self.tuner.after(rows, cost_s(self.threads))
        return used


def quiet(threads: int) -> float:
    return 0.018 if threads == 1 else 0.010


def crowded(threads: int) -> float:
    return 0.020 if threads == 1 else 0.150


def test_a_quiet_machine_uses_all_cores() -> None:
    machine = Machine(2)
    used = machine.run(1000, quiet)
    assert used[2] >= 970
    assert machine.now < 1.03 * 1000 * quiet(2)


def test_a_crowded_machine_is_noticed_within_a_few_steps() -> None:
    machine = Machine(2)
    machine.run(250, quiet)
    machine.now = 0
    machine.run(300, crowded)
    assert machine.now < 2.2 * 300 * crowded(1)


def test_quiet_again_means_all_cores_again() -> None:
    machine = Machine(2)
    machine.run(250, quiet)
    machine.run(300, crowded)
    machine.run(300, quiet)
    assert machine.run(100, quiet)[2] >= 95


def test_sizes_of_batches_are_learned_apart() -> None:
    machine = Machine(2)
    machine.run(300, crowded, rows=1)
    assert machine.run(100, quiet, rows=8)[2] >= 90


def test_a_single_core_is_left_alone() -> None:
    machine = Machine(1)
    assert machine.run(300, quiet) == {1: 300}
