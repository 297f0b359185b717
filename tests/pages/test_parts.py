"""What each part of the model is for: the script, and what pages say."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import pytest
import torch
from torch import nn

from annotated.attention import MultiHeadAttention
from annotated.book import example
from annotated.book.example import reversal_batch, reversal_model
from annotated.book.results import ledger
from annotated.layers import FeedForward
from tests.helpers import benchmark


def runs(study, **wanted):
    """The ledger's runs of a study that have these values, by seed."""
    found = [
        run
        for run in ledger()["parts"]["metrics"][study]
        if all(run[key] == value for key, value in wanted.items())
    ]
    assert sorted(run["seed"] for run in found) == [0, 1, 2], wanted
    return found


def values(key, study, **wanted):
    return [run[key] for run in runs(study, **wanted)]


# --- taking a part out


def logits(model):
    torch.manual_seed(1)
    src, tgt, _ = reversal_batch(5, 3)
    return model(src, tgt)


TAKEN = [
    "factor", "mask", "networks", "norms", "residuals", "root", "positions"
]  # fmt: skip


@pytest.mark.parametrize("part", TAKEN)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_part_that_is_taken_out_is_missed(part, depth):
    stacks = {"num_encoder_layers": depth, "num_decoder_layers": depth}
    model = reversal_model(**stacks)
    before = logits(model)
    example.without(model, part)
    after = logits(model)
    assert after.shape == before.shape
    assert (after - before).abs().max() > 0.01


def test_without_the_factor_every_score_is_not_divided():
    with_factor, without = reversal_model(), reversal_model()
    example.without(without, "factor")
    x = torch.randn(1, 4, 64)
    for one, other in zip(with_factor.modules(), without.modules()):
        if isinstance(one, MultiHeadAttention):
            longer = one.d_k**0.5 * one.w_q(x)
            torch.testing.assert_close(other.w_q(x), longer)


def test_without_the_mask_the_first_logits_see_the_last_token():
    for masked in (True, False):
        model = reversal_model()
        if not masked:
            example.without(model, "mask")
        src, tgt, _ = reversal_batch(5, 1)
        other = tgt.clone()
        other[:, -1] = (other[:, -1] - 4 + 1) % 26 + 4
        first = [model(src, ids)[:, 0] for ids in (tgt, other)]
        assert torch.equal(*first) is masked


def test_without_residuals_and_with_zeros_the_input_is_gone():
    model = reversal_model()
    example.without(model, "networks")
    example.without(model, "residuals")
    layer = model.encoder.layers[0]
    one, other = (layer(torch.randn(2, 3, 64)) for _ in range(2))
    torch.testing.assert_close(one, other)  # a norm of zeros


def test_without_networks_and_norms_none_is_left():
    model = reversal_model()
    example.without(model, "networks")
    example.without(model, "norms")
    kinds = {type(part) for part in model.modules()}
    assert not {FeedForward, nn.LayerNorm} & kinds


# --- the script


def test_the_benchmark_makes_every_run_once(tmp_path):
    with benchmark("parts") as script:
        tiny = script.Settings(
            seeds=1, steps=2, head_steps=1, network_steps=1
        )
        work = tmp_path / "runs.jsonl"
        script.run(tiny, work)
        before = script.read(work)
        cells = sum(len(cells) for _, cells in script.STUDIES.values())
        assert len(before) == cells
        script.run(tiny, work)
        assert script.read(work) == before
        script.run(replace(tiny, only="heads", first=1), work)
        assert len(script.read(work)) == cells + 7
        made = script.result(replace(tiny, work=work), script.read(work))
    assert "--work" not in made["command"]
    assert len(made["metrics"]["heads"]) == 7 + 7
    assert "curve" not in str(made)


def test_models_of_the_comparison_have_as_many_parameters():
    with benchmark("parts") as script:
        sizes = [
            script.parameters(script.Rule(*shape))
            for shape in script.SHAPES
        ]
        first, without, *others = sizes
        assert without < 0.5 * first
        assert all(abs(size / first - 1) < 0.03 for size in others)
        heads = {
            script.parameters(script.Questions(n, 4, True))
            for n in (1, 2, 4)
        }
        assert len(heads) == 1


def test_positions_beside_the_letters_share_no_column():
    with benchmark("parts") as script:
        model = reversal_model()
        script.beside(16)(model)
        letters = model.embeddings.read_source(torch.tensor([[5, 6, 7]]))
        positions = model.src_positions(3)
        assert (letters[..., 48:] == 0).all() and letters[..., :48].all()
        assert (positions[:, :48] == 0).all() and positions[1:, 48:].all()
        same = reversal_model()
        script.other_clocks(10_000.0)(same)
        torch.testing.assert_close(logits(same), logits(reversal_model()))


def test_a_batch_norm_has_one_mean_for_all_tokens():
    with benchmark("parts") as script:
        norm = script.BatchNorm(nn.LayerNorm(4))
        y = norm(3 + 2 * torch.randn(5, 6, 4))
        torch.testing.assert_close(
            y.mean(dim=(0, 1)), torch.zeros(4), atol=1e-5, rtol=0
        )


def test_what_is_no_number_is_null():
    with benchmark("parts") as script:
        assert script.ending([1.0, float("nan")])["loss"] is None
        losses = [1.0] * 20 + [0.05] + [0.5] * 10
        assert script.ending(losses)["learned_at"] == 21


# --- what pages say of the ledger (02 to 08)

FINE = [
    "whole",
    "whole, 2+2 layers",
    "one head",
    "without networks",
    "without residuals",
    "without norms",
    "without norms, 2+2 layers",
    "pre-norm",
    "batch norm",
    "without the root",
    "learned positions",
]


@pytest.mark.parametrize("name", FINE)
def test_these_end_where_the_whole_model_does(name):
    assert max(values("loss", "example", name=name)) < 0.01
    assert min(values("exact", "example", name=name)) > 0.9


@pytest.mark.parametrize(
    ("name", "low"),
    [
        ("without the factor, one head", 2.5),
        ("without residuals, 2+2 layers", 2.0),
        ("without positions", 1.2),
    ],
)
def test_these_fail_for_every_seed(name, low):
    assert min(values("loss", "example", name=name)) > low
    assert max(values("exact", "example", name=name)) == 0


def test_without_the_mask_the_loss_is_perfect_and_the_writing_is_not():
    assert max(values("loss", "example", name="without the mask")) < 0.01
    assert max(values("exact", "example", name="without the mask")) == 0


def test_the_narrow_model_without_its_factor_is_a_matter_of_luck():
    losses = values("loss", "example", name="without the factor")
    assert min(losses) < 0.1 and max(losses) > 2


def test_learned_positions_and_no_norms_are_sooner_there():
    steps = {
        name: median(values("learned_at", "example", name=name))
        for name in FINE
    }
    assert steps["learned positions"] < 0.6 * steps["whole"]
    assert steps["without norms"] < steps["whole"]
    assert steps["without the root"] > steps["whole"]


def test_four_questions_need_more_heads_than_one():
    one, two, four = (
        values("right", "heads", num_heads=n, asked=4) for n in (1, 2, 4)
    )
    assert max(one) < 0.8 and min(two) > 0.9 and min(four) > 0.98


def test_two_questions_need_two_heads_or_a_network():
    alone = {"asked": 2, "network": False}
    assert max(values("right", "heads", num_heads=1, **alone)) < 0.6
    assert min(values("right", "heads", num_heads=2, **alone)) > 0.99
    network = {"asked": 2, "network": True}
    assert min(values("right", "heads", num_heads=1, **network)) > 0.97
    for loss in values("loss", "heads", num_heads=1, **alone):
        assert 0.69 < loss < 0.85


def test_a_rule_of_two_letters_needs_a_network():
    by_shape = {
        shape: values("right", "networks", d_model=shape[0], d_ff=shape[1])
        for shape in (
            (16, 64),
            (16, 0),
            (26, 0),
            (24, 11),
            (20, 34),
            (12, 108),
        )
    }
    assert min(by_shape[16, 64]) > 0.99
    assert max(by_shape[16, 0]) < 0.8
    for fair, wide in zip(by_shape[16, 64], by_shape[26, 0], strict=True):
        assert 0.9 < wide < fair
    for shape in ((24, 11), (20, 34)):  # no worse than four times
        assert min(by_shape[shape]) > 0.99
    assert max(by_shape[12, 108]) < 0.85


def test_places_and_clocks_are_as_chapter_07_says():
    whole = values("learned_at", "example", name="whole")

    def steps(name):
        return values("learned_at", "places", name=name)

    assert median(steps("beside, 48 + 16")) <= median(whole)
    assert max(steps("beside, 32 + 32")) < min(whole)
    bases = [median(steps(f"base {base}")) for base in (10, 100, 1_000_000)]
    assert bases[0] < bases[1] < median(whole) < bases[2]


def test_depth_is_a_matter_of_the_norms_place_and_of_the_rate():
    assert min(values("loss", "depth", name="post-norm")) > 1.5
    assert max(values("loss", "depth", name="pre-norm")) < 0.01
    slow = "post-norm, a third of the rate"
    assert max(values("loss", "depth", name=slow)) < 0.05
    for loss in values("loss", "depth", name="without norms"):
        assert loss is None or loss > 100


# --- peaks and warm-ups


def test_every_peak_is_tried_after_every_warmup(tmp_path):
    with benchmark("warmup") as script:
        tiny = script.Settings(
            peaks=(1e-3, 3e-3), warmups=(1, 2), layers=1, steps=3, seeds=2
        )
        work = tmp_path / "runs.jsonl"
        script.run(replace(tiny, seeds=1), work)
        before = script.read(work)
        script.run(tiny, work)
        assert script.read(work)[: len(before)] == before
        made = script.result(tiny, script.read(work))
        one = script.learn("pre", 3e-3, 2, layers=1, steps=3, seed=1)
        mad = script.learn("post", 1e9, 1, layers=1, steps=40, seed=0)
    cells = {
        (cell["norm"], cell["warmup"], cell["peak"]): cell["losses"]
        for cell in made["metrics"]["cells"]
    }
    assert len(cells) == 2 * 2 * 2
    assert all(len(losses) == 2 for losses in cells.values())
    assert cells["pre", 2, 3e-3][1] == pytest.approx(one, rel=1e-3)
    assert mad is None or mad > 3


def test_what_chapter_12_says_of_peaks():
    fields = {
        (cell["norm"], cell["peak"], cell["warmup"]): median(
            math.inf if loss is None else loss for loss in cell["losses"]
        )
        for cell in ledger()["warmup"]["metrics"]["cells"]
    }
    peaks = sorted({peak for _, peak, _ in fields})
    warmups = sorted({steps for *_, steps in fields})

    def row(norm: str, peak: float) -> list[float]:
        return [fields[norm, peak, warmup] for warmup in warmups]

    post = {peak: row("post", peak) for peak in peaks}
    guess = math.log(12)
    assert post[0.006][0] == max(x for x in fields.values()) > guess - 0.05
    assert post[0.006] == sorted(post[0.006], reverse=True)
    gains = [post[peak][0] - min(post[peak]) for peak in peaks]
    assert gains == sorted(gains)
    assert all(gain < 0.15 for gain in gains[:3]) and gains[-1] > 0.5
    assert post[0.0003][-1] > post[0.0003][0]
    assert min(min(row) for row in post.values()) == min(post[0.0006])
    for peak in peaks[1:]:
        assert max(row("pre", peak)) < 0.5
