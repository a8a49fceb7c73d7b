"""The models of ``bench/scale.py``, by hand-computed cases."""

from __future__ import annotations

import pytest

from bench.scale_model import Engine, Request, serve, servers_for, waits

#: A step takes 1 s and 1 s per stream; a token of a prompt takes 0.1 s.
SLOW = Engine(1.0, 1.0, 0.1, max_running=2, chunk=10)


def test_it_goes_through_what_it_was_fitted_to() -> None:
    engine = Engine.through(100, 8, 400, (150, 0.1), (1500, 1.8), max_running=16)
    assert 1 / engine.step_s(1) == pytest.approx(100)
    assert 8 / engine.step_s(8) == pytest.approx(400)
    assert engine.step_s(0, 0, 150) == pytest.approx(0.1)
    assert engine.step_s(0, 0, 700) + engine.step_s(0, 700, 1500) == pytest.approx(1.8)


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


def test_jobs_wait_for_a_free_server() -> None:
    assert waits([0.0, 0.0, 1.0, 9.0], 1, 2.0) == [0.0, 2.0, 3.0, 0.0]
    assert waits([0.0, 0.0, 1.0, 9.0], 2, 2.0) == [0.0, 0.0, 1.0, 0.0]
    assert servers_for([0.0, 0.0, 0.0, 0.0], 2.0, wait_s=2.0, share=0.99) == 2
