"""Each loss against a case worked by hand, against autograd by finite differences, and another formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from openclaw_rl.train.losses import ForwardTailKL, Surrogate, TailKL, loss_of
from openclaw_rl.types import NO_SIGNAL, NOT_RECORDED, Batch


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_surrogate_by_hand() -> None:
    """Ratios 1, 1.5 and 0.5 with advantages 1, 1 and −1: −1, −1.28 and 0.8, the latter two clipped."""
    old = row(-1.0, -1.0, -1.0)
    new = old + row(0.0, math.log(1.5), math.log(0.5))
    loss = Surrogate()(new, old, row(1.0, 1.0, -1.0))
    assert loss.item() == pytest.approx(-1.0 - 1.28 + 0.8)


def test_what_is_pushed_down_is_bounded_by_the_dual_clip() -> None:
    loss = Surrogate()(row(-1.0 + math.log(50)), row(-1.0), row(-2.0))
    assert loss.item() == pytest.approx(2.0 * 3.0)


def test_a_ratio_beyond_all_measure_stays_finite() -> None:
    new = row(-1e4).requires_grad_()
    loss = Surrogate()(new, row(-1.0), row(1.0)).sum()
    loss.backward()
    assert math.isfinite(loss.item())
    assert new.grad is not None
    assert torch.isfinite(new.grad).all()


def test_the_first_gradient_is_the_policy_gradient() -> None:
    """At ratio 1 the gradient of the surrogate by the log-prob is minus the advantage."""
    old = row(-0.3, -2.0, -5.0)
    new = old.clone().requires_grad_()
    signal = row(0.7, -1.3, 0.0)
    Surrogate()(new, old, signal).sum().backward()
    torch.testing.assert_close(new.grad, -signal)


def test_a_clipped_candidate_has_no_gradient() -> None:
    old = row(-1.0, -1.0)
    new = (old + row(0.5, -0.5)).requires_grad_()
    Surrogate()(new, old, row(1.0, -1.0)).sum().backward()
    assert new.grad is not None
    assert new.grad.abs().max() == 0


@pytest.mark.parametrize("seed", range(5))
def test_surrogate_equals_an_independent_formula(seed: int) -> None:
    """min(Aρ, A·clip ρ) negated, case by case, in plain Python."""
    torch.manual_seed(seed)
    new, old, signal = (torch.randn(7, 3, dtype=torch.float64) for _ in range(3))
    new, old = -new.abs(), -old.abs()
    expected = []
    for n, o, a in zip(new.tolist(), old.tolist(), signal.tolist(), strict=True):
        total = 0.0
        for new_k, old_k, a_k in zip(n, o, a, strict=True):
            ratio = math.exp(new_k - old_k)
            gain = min(a_k * ratio, a_k * min(max(ratio, 0.8), 1.28))
            total -= gain if a_k >= 0 else max(gain, 3.0 * a_k)
        expected.append(total)
    assert Surrogate()(new, old, signal).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("loss", [Surrogate(), TailKL()])
def test_gradients_agree_with_finite_differences(loss: Surrogate | TailKL) -> None:
    torch.manual_seed(1)
    full = torch.log_softmax(torch.randn(4, 6, dtype=torch.float64), dim=1)
    teacher = torch.log_softmax(torch.randn(4, 6, dtype=torch.float64), dim=1)[:, :3]
    new = full[:, :3].clone().requires_grad_()
    signal = teacher if isinstance(loss, TailKL) else teacher + 1.5
    assert torch.autograd.gradcheck(lambda x: loss(x, full[:, :3] + 0.05, signal), (new,))


def test_tail_kl_by_hand() -> None:
    """Student .5/.3 with .2 left, teacher .25/.25 with .5 left."""
    student, teacher = row(0.5, 0.3).log(), row(0.25, 0.25).log()
    expected = 0.5 * math.log(0.5 / 0.25) + 0.3 * math.log(0.3 / 0.25) + 0.2 * math.log(0.2 / 0.5)
    assert TailKL()(student, student, teacher).item() == pytest.approx(expected, rel=1e-6)


def test_tail_kl_over_everything_is_the_full_divergence() -> None:
    torch.manual_seed(2)
    student, teacher = (torch.log_softmax(torch.randn(5, 8, dtype=torch.float64), dim=1) for _ in range(2))
    full = (student.exp() * (student - teacher)).sum(dim=1)
    # The rest is nothing on both sides, up to the floor that keeps its logarithm finite.
    torch.testing.assert_close(TailKL()(student, student, teacher), full, atol=2e-5, rtol=1e-5)


def test_tail_kl_leaves_out_what_has_no_signal() -> None:
    student, teacher = row(0.5, 0.3, 0.1).log(), row(0.25, 0.25, 0.4).log()
    marked = teacher.clone()
    marked[0, 2] = NO_SIGNAL
    torch.testing.assert_close(
        TailKL()(student, student, marked), TailKL()(student[:, :2], student[:, :2], teacher[:, :2])
    )
    nothing = torch.full_like(teacher, NO_SIGNAL)
    new = student.clone().requires_grad_()
    loss = TailKL()(new, student, nothing).sum()
    loss.backward()
    assert loss.item() == 0
    assert new.grad is not None
    assert new.grad.abs().max() == 0


def test_a_candidate_that_was_not_recorded_is_taken_as_it_is_now() -> None:
    new = torch.tensor([[-3.0, -0.5]], requires_grad=True)
    old = torch.tensor([[NOT_RECORDED, -0.5]])
    loss = Surrogate()(new, old, torch.tensor([[0.6, -0.2]]))
    assert loss.item() == pytest.approx(-0.6 + 0.2)
    loss.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == [pytest.approx([-0.6, 0.2])]


def test_forward_kl_is_the_divergence_of_the_student_from_the_teacher() -> None:
    """Two named tokens and the rest, by hand."""
    teacher, new = torch.tensor([[0.5, 0.2]]).log(), torch.tensor([[0.25, 0.25]]).log().requires_grad_()
    loss = ForwardTailKL()(new, torch.zeros(1, 2), teacher)
    expected = 0.5 * math.log(2) + 0.2 * math.log(0.8) + 0.3 * math.log(0.3 / 0.5)
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    loss.sum().backward()
    # Through the rest as well: d/dl of -r_T log(1 - sum of e^l) is r_T e^l / rest.
    np.testing.assert_allclose(new.grad[0], [-0.5 + 0.3 * 0.25 / 0.5, -0.2 + 0.3 * 0.25 / 0.5], atol=1e-6)


def test_forward_kl_is_least_where_student_and_teacher_agree() -> None:
    """With its tail: without one, the named tokens would take the rest's probability."""
    teacher = torch.tensor([[0.5, 0.2]]).log()
    assert float(ForwardTailKL()(teacher, teacher, teacher)) == pytest.approx(0.0, abs=1e-6)
    logits = torch.tensor([[0.5, 0.2, 0.3]]).log().requires_grad_()
    ForwardTailKL()(torch.log_softmax(logits, 1)[:, :2], teacher, teacher).sum().backward()
    assert logits.grad.abs().max() < 1e-6
    marked = torch.tensor([[0.5, 0.2]]).log()
    marked[0, 1] = NO_SIGNAL
    assert torch.allclose(
        ForwardTailKL()(teacher, teacher, marked),
        ForwardTailKL()(teacher[:, :1], teacher[:, :1], marked[:, :1]),
    )


def test_a_batch_names_its_loss() -> None:
    assert loss_of(Batch([], "clipped-surrogate", {"clip_low": 0.1})) == Surrogate(clip_low=0.1)
    assert loss_of(Batch([], "reverse-kl")) == TailKL()
    assert loss_of(Batch([], max)) is max
    with pytest.raises(ValueError, match="clipped-surrogate, reverse-kl, forward-kl"):
        loss_of(Batch([], "hinge"))
    with pytest.raises(ValueError, match="clip_lo"):
        loss_of(Batch([], "clipped-surrogate", {"clip_lo": 0.1}))
