"""No test asserts how long something takes: a slower or busier machine would fail it.

The check follows names. What is read from a clock is a time; the difference of two times, or a figure whose
name says so (``cpu_s_per_vote``, ``latency_s``), is a measurement. An assertion must not compare one with
anything. Deadlines (``assert time.monotonic() < give_up_at``) and made-up clocks compare none. Figures of
speed are taken in ``bench/``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
Function = ast.FunctionDef | ast.AsyncFunctionDef
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
CLOCKS |= {f"{name}_ns" for name in CLOCKS}
#: Figures that the product measures itself.
FIGURES = re.compile(
    r"\w*(cpu_s|_per_vote|latency_s|elapsed(_s|_ms)?|duration(_s|_ms)?|first_token_s|tokens_per_second)(_\w+)?"
    r"|(\w+_)?(total_s|forward_s|backward_s|wall_s|seconds)|\w+_ms"
)


def measurements(source: str) -> list[tuple[int, str]]:
    """Line and text of every assertion that compares a measurement."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]
    found = {
        (node.lineno, ast.unparse(node.test))
        for function in functions
        for node in _Scope(function).assertions()
    }
    return sorted(found)


class _Scope:
    """One function with those inside it; names are followed from their assignments."""

    def __init__(self, root: Function) -> None:
        self._root = root
        self._times: set[str] = set()
        self._measured: set[str] = set()
        while self._follow():
            pass

    def assertions(self) -> Iterator[ast.Assert]:
        for node in ast.walk(self._root):
            if isinstance(node, ast.Assert) and any(
                self._is_measured(side)
                for compared in ast.walk(node.test)
                if isinstance(compared, ast.Compare)
                for side in [compared.left, *compared.comparators]
            ):
                yield node

    def _follow(self) -> bool:
        """Whether another name is known to hold a time or a measurement."""
        before = len(self._times) + len(self._measured)
        for target, value in self._assignments():
            names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
            if self._is_measured(value):
                self._measured |= names
            elif self._is_time(value):
                self._times |= names
        return len(self._times) + len(self._measured) > before

    def _assignments(self) -> Iterator[tuple[ast.AST, ast.AST]]:
        for node in ast.walk(self._root):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    yield from _paired(target, node.value)
            elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value:
                yield node.target, node.value
            elif isinstance(node, ast.For | ast.comprehension):
                yield node.target, node.iter
            elif isinstance(node, ast.Call):
                match node:
                    case ast.Call(func=ast.Attribute(attr="append" | "extend" | "add"), args=[added]):
                        yield node.func.value, added

    def _is_measured(self, node: ast.AST) -> bool:
        """Whether a measurement's value is in the expression's value; its truth or count is not it."""
        match node:
            case ast.Name(id=name):
                return name in self._measured
            case ast.BinOp(op=ast.Sub(), left=left, right=right) if self._is_time(left) and self._is_time(
                right
            ):
                return True
            case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
                return FIGURES.fullmatch(name) is not None or self._is_measured(node.value)
            case ast.Call(func=ast.Name(id="len" | "isinstance" | "bool" | "type")) | ast.Lambda():
                return False
            case ast.Compare():
                return False
            case ast.Call(func=func, args=arguments):
                called = isinstance(func, ast.Attribute) and self._is_measured(func.value)
                return called or any(self._is_measured(argument) for argument in arguments)
            case ast.ListComp(elt=element) | ast.SetComp(elt=element) | ast.GeneratorExp(elt=element):
                return self._is_measured(element)
            case ast.DictComp(value=value):
                return self._is_measured(value)
        return any(self._is_measured(child) for child in ast.iter_child_nodes(node))

    def _is_time(self, node: ast.AST) -> bool:
        """A clock's reading, and what a clock's reading is moved by."""
        match node:
            case ast.Name(id=name):
                return name in self._times
            case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr=name)):
                return name in CLOCKS
            case ast.Call(func=ast.Name(id=name)):
                return name in CLOCKS - {"time"} or (
                    name in ("max", "min", "sum", "list", "pairwise", "sorted")
                    and any(self._is_time(argument) for argument in node.args)
                )
            case ast.Call() | ast.Compare() | ast.Lambda():
                return False
        return any(self._is_time(child) for child in ast.iter_child_nodes(node))


def _paired(target: ast.AST, value: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """``a, b = x, y`` are two assignments."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _paired(one, other)
    else:
        yield target, value


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_asserts_how_long_something_takes(path: Path) -> None:
    lines = [f"{path}:{line}: assert {text}" for line, text in measurements(path.read_text("utf-8"))]
    assert lines == [], "wait for the event, make up a clock, or measure in bench/"


PLANTED = {
    "directly": "assert time.monotonic() - started < 2",
    "both bounds": "assert 0.5 <= time.monotonic() - started < 1",
    "CPU time": "assert time.process_time() - time.process_time() < 2",
    "through a name": "took = perf_counter() - perf_counter()\n    assert took < 1",
    "through two names": "took = time.time() - started\n    worst = max(took, 1.0)\n    assert worst < 1",
    "through a list": "gaps = []\n    gaps.append(time.monotonic() - started)\n    assert max(gaps) < 1",
    "through pairs": "stamps = [started]\n    stamps.append(time.monotonic())\n"
    "    gaps = [b - a for a, b in pairwise(stamps)]\n    assert gaps[0] < 1",
    "two clocks at once": "wall, cpu = time.monotonic(), time.process_time()\n"
    "    assert time.process_time() - cpu <= 2",
    "in nanoseconds": "assert time.perf_counter_ns() - time.perf_counter_ns() < 10**9",
    "a rate": "rate = 80 / (time.monotonic() - started)\n    assert rate > 20",
    "among others": "assert done and (time.monotonic() - started) * 1000 < 5",
    "a figure of a report": "assert report.cpu_s_per_vote <= 0.5",
    "a figure of a record": "assert turn.timings['first_token_s'] < 1",
    "a step's time": "assert trainer.step(batch, 0).total_s < 2",
    "a part of a step's time": "assert metrics['forward_s'] < metrics['backward_s']",
    "milliseconds": "assert reply.json()['prompt_ms'] < 500",
    "seconds": "assert run.seconds < 5",
    "seconds of something": "assert max(row['busy_seconds'] for row in rows) < 5",
    "figures of records": "first, *later = [turn.timings['first_token_s'] for turn in turns]\n"
    "    assert median(later) < first / 2",
}
ALLOWED = {
    "a deadline": "assert time.monotonic() < give_up_at",
    "a deadline of a loop": "deadline = time.monotonic() + 60\n"
    "    while time.monotonic() < deadline:\n        assert not failed",
    "an age in a record": "turn = make_turn(created_at=time.time() - 40 * DAY)\n    assert load() == turn",
    "a made-up clock": "clock.now += 5\n    assert clock.now - began == 5",
    "how many were measured": "times.append(time.monotonic() - started)\n    assert len(times) == 3",
    "printing it": "print(time.monotonic() - started)\n    assert done",
    "a setting": "assert config.timeout_s == 5",
    "whether there is a figure": "assert 'total_s' in report",
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_measurement_is_found(name: str) -> None:
    source = f"async def test_it():\n    started = time.monotonic()\n    {PLANTED[name]}\n"
    assert len(measurements(source)) == 1


@pytest.mark.parametrize("name", ALLOWED)
def test_deadlines_and_made_up_clocks_are_allowed(name: str) -> None:
    source = f"def test_it(clock):\n    began = 0\n    started = time.monotonic()\n    {ALLOWED[name]}\n"
    assert measurements(source) == []
