"""Which tasks are drawn: mostly those at which attempts succeed sometimes."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from openclaw_rl.envs.curriculum import Curriculum
from openclaw_rl.types import Task

KINDS = ("easy", "mixed", "hard")
TASKS = [Task(f"{kind}-{n}", {"template": kind}) for kind in KINDS for n in range(5)]


def after(results: dict[str, int], seed: int = 0) -> Curriculum:
    """Each template has had three groups of eight, of which so many succeeded."""
    earlier = [(f"{kind}-{n}", solved, 8) for kind, solved in results.items() for n in range(3)]
    return Curriculum(TASKS, 8, seed, earlier)


def drawn(curriculum: Curriculum, number: int) -> list[str]:
    return [task.id for task in islice(curriculum.tasks(9, 10_000), number)]


def test_mixed_outcomes_are_drawn_more_often_than_sure_ones() -> None:
    curriculum = after({"easy": 8, "mixed": 3, "hard": 0})
    counts = Counter(name.partition("-")[0] for name in drawn(curriculum, 300))
    assert counts["mixed"] > 1.5 * max(counts["easy"], counts["hard"])
    assert min(counts["easy"], counts["hard"]) > 10, "what is sure now may change"


def test_a_template_that_becomes_too_easy_is_drawn_less() -> None:
    curriculum = after({"easy": 8, "mixed": 3, "hard": 0})
    before = curriculum.weight("mixed")
    for _ in range(8):
        curriculum.note("mixed-0", 8, 8)
    assert curriculum.weight("mixed") < before / 2


def test_groups_whose_outcome_is_unknown_change_nothing() -> None:
    """An environment that is broken for an hour fails thousands of them."""
    curriculum = after({"easy": 8, "mixed": 3, "hard": 0})
    before = curriculum.weight("mixed")
    for _ in range(4000):
        curriculum.note("mixed-0", 0, 0)
    assert curriculum.weight("mixed") == before


def test_tasks_of_a_template_come_in_rounds_also_in_a_run_that_goes_on() -> None:
    alone = [task for task in TASKS if task.data["template"] == "mixed"]
    whole = [task.id for task in Curriculum(alone, 8, 3).tasks(0, 10)]
    assert sorted(whole[:5]) == sorted(whole[5:]) == sorted(task.id for task in alone)
    resumed = Curriculum(alone, 8, 3, [(name, 4, 8) for name in whole[:4]])
    assert [task.id for task in resumed.tasks(4, 10)] == whole[4:]


def test_the_order_depends_on_seed_and_results_alone() -> None:
    results = {"easy": 8, "mixed": 3, "hard": 0}
    assert drawn(after(results), 50) == drawn(after(results), 50)
    assert drawn(after(results), 50) != drawn(after(results, seed=1), 50)


def test_tasks_without_a_template_all_have_their_turn() -> None:
    plain = [Task(str(n), {}) for n in range(6)]
    curriculum = Curriculum(plain, 8, 0)
    curriculum.note("0", 0, 8)
    assert sorted(task.id for task in curriculum.tasks(0, 6)) == [str(n) for n in range(6)]
