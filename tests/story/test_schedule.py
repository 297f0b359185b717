"""Chapter 12: Adam and the learning rate of equation 3."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated.schedule import (
    cooldown_factor,
    learning_rate,
    make_optimizer,
    set_learning_rate,
)

calm = settings(deadline=None)  # a busy machine is no failure


@pytest.mark.parametrize(
    ("step", "d_model", "warmup", "rate"),
    [
        # 512^-0.5 · 4000^-0.5 = 1 / √2,048,000
        (4000, 512, 4000, 6.98771242968684e-04),
        # the first step is 1/4000 of that
        (1, 512, 4000, 1.74692810742171e-07),
        # half of the peak on the way up, and four times the warm-up down
        (2000, 512, 4000, 3.49385621484342e-04),
        (16_000, 512, 4000, 3.49385621484342e-04),
        # the end of the base model: (512 · 100,000)^-0.5
        (100_000, 512, 4000, 1.39754248593737e-04),
        # the big model's peak: (1024 · 4000)^-0.5
        (4000, 1024, 4000, 4.94105884401309e-04),
        (1, 1, 1, 1.0),
        (4, 1, 1, 0.5),
    ],
)
def test_the_rate_is_what_one_computes_by_hand(step, d_model, warmup, rate):
    assert learning_rate(step, d_model, warmup) == pytest.approx(
        rate, rel=1e-12
    )


def test_the_paper_is_the_default():
    assert learning_rate(123, 512) == learning_rate(123, 512, 4000, 1.0)


@calm
@given(st.integers(1, 20_000), st.integers(1, 2048))
def test_the_peak_is_at_the_end_of_the_warm_up(warmup, d_model):
    peak = learning_rate(warmup, d_model, warmup)
    assert peak == pytest.approx((d_model * warmup) ** -0.5)
    assert learning_rate(warmup + 1, d_model, warmup) < peak
    if warmup > 1:
        assert learning_rate(warmup - 1, d_model, warmup) < peak


@calm
@given(st.integers(2, 5000), st.data())
def test_it_rises_in_a_line_and_falls_as_a_root(warmup, data):
    first = learning_rate(1, 64, warmup)
    step = data.draw(st.integers(1, warmup))
    assert learning_rate(step, 64, warmup) == pytest.approx(step * first)
    late = data.draw(st.integers(warmup, 10**6))
    half = learning_rate(late, 64, warmup) / 2
    assert learning_rate(4 * late, 64, warmup) == pytest.approx(half)


def test_the_factor_multiplies():
    assert learning_rate(7, 64, 9, 3.0) == 3 * learning_rate(7, 64, 9)


def test_a_cool_down_is_a_line_to_zero():
    factors = [cooldown_factor(step, 10, 4) for step in range(1, 12)]
    assert factors == [1] * 7 + [0.75, 0.5, 0.25, 0]


def test_a_run_shorter_than_its_cool_down_cools_from_the_first_step():
    factors = [cooldown_factor(step, 4, 9) for step in range(1, 6)]
    assert factors == [1, 0.75, 0.5, 0.25, 0]


def test_without_a_cool_down_every_rate_stays():
    assert {cooldown_factor(step, 10, 0) for step in range(1, 20)} == {1.0}


@pytest.mark.parametrize(("step", "warmup"), [(0, 4000), (-1, 10), (5, 0)])
def test_a_step_or_warm_up_below_one_is_refused(step, warmup):
    with pytest.raises(ValueError, match="start at 1"):
        learning_rate(step, 512, warmup)


def parameter(values, dtype=torch.float64):
    return torch.nn.Parameter(torch.tensor(values, dtype=dtype))


def test_the_optimiser_has_the_papers_constants():
    optimizer = make_optimizer([parameter([1.0])])
    assert isinstance(optimizer, torch.optim.Adam)
    (group,) = optimizer.param_groups
    assert group["betas"] == (0.9, 0.98)
    assert group["eps"] == 1e-9
    assert group["weight_decay"] == 0
    assert not group["amsgrad"]


def test_the_first_step_of_adam_is_the_rate_in_the_gradients_direction():
    weights = parameter([1.0, 1.0, 1.0])
    optimizer = make_optimizer([weights])
    set_learning_rate(optimizer, 0.25)
    weights.grad = torch.tensor([100.0, -1e-3, 2.0], dtype=torch.float64)
    optimizer.step()
    expected = torch.tensor([0.75, 1.25, 0.75], dtype=torch.float64)
    torch.testing.assert_close(
        weights.detach(), expected, rtol=0, atol=1e-6
    )


def test_two_steps_of_adam_are_those_by_hand():
    """Gradients 1, then 3, at rates 0.1 and 0.2."""
    weight = parameter([0.0])
    optimizer = make_optimizer([weight], eps=0.5)
    for gradient, rate in [(1.0, 0.1), (3.0, 0.2)]:
        set_learning_rate(optimizer, rate)
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
    # m: 0.1, then 0.9 · 0.1 + 0.1 · 3 = 0.39; over 1 - 0.9, 1 - 0.81
    # v: 0.02, then 0.98 · 0.02 + 0.02 · 9 = 0.1996; over 0.02, 0.0396
    first = 0.1 * 1.0 / (1.0 + 0.5)
    second = 0.2 * (0.39 / 0.19) / (math.sqrt(0.1996 / 0.0396) + 0.5)
    assert weight.item() == pytest.approx(-first - second, rel=1e-12)


def test_the_fused_form_agrees_with_torchs_plain_one():
    torch.manual_seed(0)
    start = torch.randn(40, 30, dtype=torch.float64)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    optimizers = (
        make_optimizer([ours]),
        torch.optim.Adam(
            [theirs],
            betas=(0.9, 0.98),
            eps=1e-9,
            fused=False,
            foreach=False,
        ),
    )
    fused = torch.__version__ >= "2.4"  # before that, on GPUs only
    assert optimizers[0].defaults["fused"] == fused
    for step in range(1, 30):
        gradient = torch.randn_like(start)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        for optimizer in optimizers:
            set_learning_rate(optimizer, learning_rate(step, 64, 10))
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_a_generator_of_parameters_and_all_groups_are_served():
    model = torch.nn.Linear(2, 3)
    optimizer = make_optimizer(model.parameters())
    optimizer.add_param_group({"params": [parameter([1.0])]})
    set_learning_rate(optimizer, 0.125)
    assert [g["lr"] for g in optimizer.param_groups] == [0.125, 0.125]


def test_before_a_rate_is_set_nothing_moves():
    weight = parameter([1.0])
    optimizer = make_optimizer([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert weight.item() == 1.0


def test_no_parameters_are_refused():
    with pytest.raises(ValueError, match="empty parameter list"):
        make_optimizer([])
