"""The models of ``bench/scale.py``, by hand-computed cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.scale_model import Engine, Request, serve, servers_for, waits
from bench.step_costs import Step, fit, read_steps

#: A step takes 1 s and 1 s per stream; a token of a prompt takes 0.1 s.
SLOW = Engine(1.0, 1.0, 0.1, max_running=2, chunk=10)


def test_it_goes_through_what_it_was_fitted_to() -> None:
    engine = Engine.through(100, 8, 400, (150, 0.1), (1500, 1.8), max_running=16)
    assert 1 / engine.step_s(1) == pytest.approx(100)
    assert 8 / engine.step_s(8) == pytest.approx(400)
    assert engine.read_alone_s(150) == pytest.approx(0.1)
    assert engine.step_s(0, 0, 0, 700) + engine.step_s(0, 0, 700, 1500) == pytest.approx(1.8)


def test_a_stream_waits_while_a_prompt_is_read_beside_it() -> None:
    served = serve(SLOW, [Request(0.0, 10, 3), Request(1.5, 20, 1)])
    first, second = sorted(served.requests, key=lambda request: request.at)
    # 1 s of prompt, 2 s alone, then a step with half of the other prompt: 2 s and 1 s.
    assert (first.first, first.end) == (pytest.approx(1.0), pytest.approx(6.0))
    # It came while the step alone ran, and reads its other half when nobody is left.
    assert (second.first, second.end) == (pytest.approx(7.0), pytest.approx(7.0))


def test_no_more_run_than_have_a_place() -> None:
    served = serve(SLOW, [Request(0.0, 10, 3), Request(0.0, 10, 3), Request(0.0, 10, 3)])
    ends = sorted(request.end for request in served.requests)
    starts = sorted(request.first for request in served.requests)
    assert starts[2] > ends[0]


def test_a_long_history_makes_every_token_slower() -> None:
    engine = Engine(1.0, 0.0, 0.1, max_running=2, context_s=0.01)
    (request,) = serve(engine, [Request(0.0, 10, 3, history=90)]).requests
    assert request.first == pytest.approx(1.0)  # its prompt, without the history
    assert request.end == pytest.approx(1.0 + (1 + 1.0) + (1 + 1.01))


def test_pieces_of_prompts_shrink_while_they_delay_a_stream() -> None:
    engine = Engine(0.1, 0.0, 0.01, max_running=2, chunk=40)
    served = serve(engine, [Request(0.0, 10, 99), Request(0.15, 60, 1)])
    second = served.requests[0]
    # The first stream's prompt, two steps alone, then 40 tokens in 0.5 s: so 16 in the next, and the last 4.
    assert second.first == pytest.approx(0.1 + 0.1 + 0.5 + 0.26 + 0.14)


def test_what_steps_cost_is_found_in_their_trace() -> None:
    costs = {"fixed_s": 0.005, "row_s": 0.001, "context_s": 1e-6, "prompt_s": 0.01, "read_s": 5e-4}
    engine = Engine(**costs, attend_s=1e-7, max_running=16)
    steps = [
        Step(
            0.0, rows, prompt, rows * each, begins, engine.step_s(rows, rows * each, begins, begins + prompt)
        )
        for rows, each in ((1, 100), (1, 1500), (4, 500), (8, 150))
        for prompt, begins in ((0, 0), (40, 27), (256, 27), (256, 283))
    ]
    assert fit(steps) == pytest.approx({**costs, "attend_s": 1e-7, "cached": 27.0})


def test_a_step_lasts_until_the_next_one_begins(tmp_path: Path) -> None:
    trace = tmp_path / "steps"
    trace.write_text("1.00 0 10 0 27 0.10 0.1 0.1\n1.12 1 0 37 0 0.10 0.1 0.1\n9.00 1 0 38 0 0.10 0.1 0.1\n")
    assert [step.s for step in read_steps(trace)] == pytest.approx([0.10, 0.12, 0.10])
    assert len(read_steps(trace, began=1.05, ended=2.0)) == 1


def test_jobs_wait_for_a_free_server() -> None:
    assert waits([0.0, 0.0, 1.0, 9.0], 1, 2.0) == [0.0, 2.0, 3.0, 0.0]
    assert waits([0.0, 0.0, 1.0, 9.0], 2, 2.0) == [0.0, 0.0, 1.0, 0.0]
    assert servers_for([0.0, 0.0, 0.0, 0.0], 2.0, wait_s=2.0, share=0.99) == 2
