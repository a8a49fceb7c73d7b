"""Chooses the number of threads per step from measured step times.

Threads of one product wait for each other. On an idle machine all cores together are fastest. As
soon as another program takes one of them, every product waits for the thread that lost its core,
and a single thread is many times faster. So the alternative is tried now and then, and at once
when steps become slow, and whichever was recently faster is used.
"""

from __future__ import annotations

from collections.abc import Callable

_EXPLORE_EVERY = 100
_EXPLORE_STEPS = 2
#: A step this many times slower than usual triggers a trial of the alternative.
_SLOW = 3.0
_WEIGHT, _TRIAL_WEIGHT = 0.3, 0.8


class ThreadTuner:
    """Chooses between one thread and all of them, separately for each class of batch sizes."""

    def __init__(self, most: int, set_threads: Callable[[int], None]) -> None:
        self._most, self._set_threads = most, set_threads
        self._using = most
        self._recent_s: dict[tuple[int, int], float] = {}
        """(batch size class, threads) -> smoothed seconds per step"""
        self._usual_s: dict[int, float] = {}
        self._best: dict[int, int] = {}
        self._steps = 0
        self._trial, self._trial_steps = most, 0

    def before(self, num_rows: int) -> None:
        """Set the number of threads for the coming step."""
        if self._most == 1:
            return
        self._steps += 1
        num_threads = self._best.get(num_rows.bit_length(), self._most)
        if self._steps % _EXPLORE_EVERY == 0:
            self._explore(num_threads)
        if self._trial_steps:
            self._trial_steps -= 1
            num_threads = self._trial
        if num_threads != self._using:
            self._set_threads(num_threads)
            self._using = num_threads

    def after(self, num_rows: int, elapsed_s: float) -> None:
        """Record the duration of a step that decoded one token of each row."""
        if self._most == 1:
            return
        size, used = num_rows.bit_length(), self._using
        before = self._recent_s.get((size, used), elapsed_s)
        # The average of the choice not in use is out of date, so a trial gets more weight.
        weight = _TRIAL_WEIGHT if used != self._best.get(size, self._most) else _WEIGHT
        self._recent_s[size, used] = (1 - weight) * before + weight * elapsed_s
        usual = self._usual_s.get(size, elapsed_s)
        if elapsed_s > _SLOW * usual and not self._trial_steps:
            self._explore(used)
        # Follows faster steps at once and slower ones gradually: the speed this machine can reach.
        self._usual_s[size] = min(elapsed_s, 0.999 * usual + 0.001 * elapsed_s)
        choices = {n: self._recent_s[size, n] for n in (1, self._most) if (size, n) in self._recent_s}
        self._best[size] = min(choices, key=choices.__getitem__)

    def _explore(self, current: int) -> None:
        """Use the alternative for the next few steps, whatever they measure."""
        self._trial = self._most if current == 1 else 1
        self._trial_steps = _EXPLORE_STEPS
