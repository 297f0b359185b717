"""Chapter 07: sinusoids, learned positions, and the shift."""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from annotated.attention import attention_weights
from annotated.book import example
from annotated.book.results import ledger
from annotated.embeddings import (
    LearnedPositions,
    SinusoidalPositions,
    sinusoids,
)
from press.chapters import read_chapter
from tests.helpers import ROOT, benchmark

quick = settings(max_examples=25, deadline=None)
exact = {"rtol": 0.0, "atol": 1e-12}


def test_sinusoids_are_the_values_by_hand():
    # d_model 4: the frequencies are 1 and 1/100
    expected = [
        [0.0, 1.0, 0.0, 1.0],
        [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)],
        [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)],
    ]
    got = sinusoids(3, 4, torch.float64)
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(got, expected, **exact)


def test_sinusoids_are_the_formula_of_the_paper():
    table = sinusoids(40, 22, torch.float64)
    for pos in range(40):
        for i in range(11):
            angle = pos / 10_000 ** (2 * i / 22)
            assert abs(table[pos, 2 * i] - math.sin(angle)) < 1e-12
            assert abs(table[pos, 2 * i + 1] - math.cos(angle)) < 1e-12


def test_sinusoids_are_float32_unless_told_otherwise():
    assert sinusoids(2, 4).dtype == torch.float32
    assert sinusoids(2, 4, torch.float64).dtype == torch.float64


def test_an_odd_width_ends_with_a_sine():
    assert torch.equal(sinusoids(6, 5), sinusoids(6, 5)[:, :5])
    assert sinusoids(6, 5).shape == (6, 5)
    slowest = math.sin(5 / 10_000 ** (4 / 5))
    assert sinusoids(6, 5)[5, 4].item() == pytest.approx(slowest)


def test_far_positions_keep_their_digits():
    far = 200_000
    table = sinusoids(far + 1, 8)
    assert table[far, 0].item() == pytest.approx(math.sin(far), abs=1e-7)
    assert table[far, 2].item() == pytest.approx(
        math.sin(far / 10), abs=1e-7
    )


def test_wavelengths_grow_from_2_pi_towards_10000_times_2_pi():
    d_model = 16
    slope = sinusoids(2, d_model, torch.float64)[1, 0::2].asin()
    wavelength = 2 * math.pi / slope
    ratio = wavelength[1:] / wavelength[:-1]
    assert wavelength[0].item() == pytest.approx(2 * math.pi)
    assert ratio.tolist() == pytest.approx([10_000 ** (2 / d_model)] * 7)
    one_more = wavelength[-1] * ratio[-1]
    assert one_more.item() == pytest.approx(10_000 * 2 * math.pi)


@quick
@given(k=st.integers(-200, 200), half=st.integers(1, 40))
def test_a_shift_turns_each_pair_by_its_own_angle(k, half):
    table = sinusoids(300, 2 * half, torch.float64)
    angle = k / 10_000 ** (torch.arange(half, dtype=torch.float64) / half)
    here = table[: 300 - k] if k >= 0 else table[-k:]
    there = table[k:] if k >= 0 else table[: 300 + k]
    sin, cos = here[:, 0::2], here[:, 1::2]
    turned = torch.complex(cos, sin) * torch.exp(1j * angle)
    torch.testing.assert_close(turned.imag, there[:, 0::2], **exact)
    torch.testing.assert_close(turned.real, there[:, 1::2], **exact)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_one_matrix_makes_a_head_look_back_from_everywhere(k):
    """Chapter 07's own head: nine tenths of its weight, about."""
    page = read_chapter(ROOT / "book" / "07-positions.md")
    code = "\n".join(cell.source for cell in page.code)
    here = {
        "torch": torch,
        "sinusoids": sinusoids,
        "attention_weights": attention_weights,
    }
    for name in ("shift_matrix", "look_back"):
        body = re.search(rf"^def {name}\(.*?(?=^\S|\Z)", code, re.S | re.M)
        exec(body[0], here)
    weights = here["look_back"](k, 60)
    assert weights.argmax(dim=-1)[k:].tolist() == [*range(60 - k)]
    there = weights.diagonal(-k)
    assert there.min() > 0.85
    assert there.max() < 0.95


@quick
@given(distance=st.integers(0, 150), half=st.integers(1, 40))
def test_products_of_encodings_depend_on_the_distance_alone(distance, half):
    table = sinusoids(300, 2 * half, torch.float64)
    products = (table[: 300 - distance] * table[distance:]).sum(dim=1)
    torch.testing.assert_close(
        products, products[:1].expand_as(products), **exact
    )
    if distance == 0:
        assert products[0].item() == pytest.approx(half)


def test_fixed_positions_are_the_table():
    assert torch.equal(SinusoidalPositions(6)(3), sinusoids(3, 6))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_fixed_positions_grow_with_the_longest_sentence(dtype):
    positions = SinusoidalPositions(6, length=4).to(dtype)
    assert torch.equal(positions(3), sinusoids(3, 6, dtype))
    got = positions(50)
    assert got.dtype == dtype
    assert torch.equal(got, sinusoids(50, 6, dtype))
    assert len(positions.table) >= 50


def test_fixed_positions_grow_where_they_are():
    positions = SinusoidalPositions(6, length=4).to("meta")
    assert positions(9).device.type == "meta"


def test_fixed_positions_lose_nothing_in_another_precision_and_back():
    positions = SinusoidalPositions(6).bfloat16()
    assert positions(9).dtype == torch.bfloat16
    assert torch.equal(positions.float()(9), sinusoids(9, 6))


def test_fixed_positions_learn_nothing_and_save_nothing():
    positions = SinusoidalPositions(6)
    assert list(positions.parameters()) == []
    assert positions.state_dict() == {}


def test_learned_positions_are_rows_that_get_gradients():
    positions = LearnedPositions(6, length=5)
    assert torch.equal(positions(2), positions.table[:2])
    positions(2).sum().backward()
    assert positions.table.grad[:, 0].tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_learned_positions_go_no_further_than_max_len():
    positions = LearnedPositions(6, length=5)
    assert positions(5).shape == (5, 6)
    with pytest.raises(ValueError, match="6 tokens, but max_len is 5"):
        positions(6)


def test_learned_positions_start_as_loud_as_sinusoids():
    torch.manual_seed(0)
    loud = sinusoids(200, 64).square().mean().item()
    learned = LearnedPositions(64, 200).table.square().mean().item()
    assert loud == pytest.approx(0.5)
    assert learned == pytest.approx(loud, rel=0.05)


def test_what_chapter_07_says_of_longer_words() -> None:
    runs = ledger()["lengths"]["metrics"]["runs"]
    by_kind = {
        kind: [run["right"] for run in runs if run["positions"] == kind]
        for kind in ("sinusoidal", "learned", "none")
    }
    assert [len(found) for found in by_kind.values()] == [5, 5, 5]
    for right in by_kind["learned"]:  # a cliff
        assert min(right[:9]) > 0.9 and max(right[9:]) < 0.1
    for right in by_kind["sinusoidal"]:  # a blur
        assert min(right[:7]) > 0.85 and right[8] < 0.95
        assert right[9] > 0.15 and max(right[12:]) < 0.3
    reach = [right[9] for right in by_kind["sinusoidal"]]
    assert max(reach) > 2 * min(reach)  # "a matter of the seed"
    for right in by_kind["none"]:
        assert max(right) < 0.35


def test_the_script_trains_the_models_of_the_page():
    page = read_chapter(ROOT / "book" / "07-positions.md")
    code = "\n".join(cell.source for cell in page.code)
    parts = [
        re.search(pattern, code, re.S)
        for pattern in (
            r"class NoPositions.*?\n\n\n",
            r"def copy_batch.*?\n\n\n",
            r"curves = {}.*?(?=\n    curves)",
        )
    ]
    text = "".join(part[0] for part in parts if part)
    text = (
        text.replace("model, 600", "model, 2")
        + "\n    curves[kind] = model"
    )
    here = vars(example) | {"torch": torch, "nn": nn}
    exec(text, here)
    with benchmark("lengths") as script:
        for kind, ours in here["curves"].items():
            theirs = script.trained(kind, 0, 2)
            for one, other in zip(
                ours.parameters(), theirs.parameters(), strict=True
            ):
                assert torch.equal(one, other), kind


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_beyond_nine_letters_one_breaks_off_and_the_other_fades(kind):
    """Copied after words of one to nine letters: the share that is right
    at each place of a word of 18, as chapter 07 draws it.
    """
    with benchmark("lengths") as script:
        right = torch.tensor(
            script.right_letters(script.trained(kind, 0, 600))
        )
    assert right[:6].min() > 0.9
    assert right[13:18].max() < 0.3
    if kind == "learned":
        assert right[:9].min() > 0.9 and right[9:18].max() < 0.15
    else:
        assert right[7:9].min() < 0.95 and right[9] > 0.2


def test_a_table_that_grew_in_inference_can_be_trained_with():
    """Rotary positions multiply by it, and autograd keeps what it was."""
    positions = SinusoidalPositions(4, length=2)
    with torch.inference_mode():
        positions(5)
    x = torch.ones(5, 4, requires_grad=True)
    (x * positions(5)).sum().backward()
    torch.testing.assert_close(x.grad, sinusoids(5, 4))
