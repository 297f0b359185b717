"""Means of checkpoints, and which of them: chapter 15."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from annotated.checkpoints import average_weights, choose_checkpoints
from annotated.engine.errors import RunError

# --- which checkpoints ----------------------------------------------------

PLACES = [Path(f"{step:08d}") for step in (10, 20, 30, 40)]


def test_the_last_are_the_last() -> None:
    assert choose_checkpoints(PLACES, 2) == PLACES[2:]
    assert choose_checkpoints(PLACES, 4) == PLACES


def test_the_best_have_the_lowest_loss() -> None:
    nll = {10: 3.0, 20: 1.0, 30: 2.0, 40: 4.0, 50: 0.0}
    best = choose_checkpoints(PLACES, 2, nll)
    assert sorted(best) == [PLACES[1], PLACES[2]]


@pytest.mark.parametrize("count", [0, -1])
def test_no_checkpoint_is_no_choice(count: int) -> None:
    must = (
        f"^the number of checkpoints must be an integer >= 1, not {count}"
    )
    with pytest.raises(ValueError, match=must):
        choose_checkpoints(PLACES, count)
    assert choose_checkpoints(PLACES, 1) == PLACES[-1:]


def test_more_than_there_are_cannot_be_chosen() -> None:
    with pytest.raises(ValueError, match="5 checkpoints .* there are 4"):
        choose_checkpoints(PLACES, 5)
    with pytest.raises(ValueError, match="2 validated .* there are 1"):
        choose_checkpoints(PLACES, 2, {10: 1.0, 15: 0.5})


# --- averages -------------------------------------------------------------


def saved(folder: Path, **weights: torch.Tensor) -> Path:
    path = folder / f"{len(list(folder.iterdir()))}.safetensors"
    save_file(weights, path)
    return path


def test_the_average_is_the_mean_of_every_number(tmp_path: Path) -> None:
    paths = [
        saved(tmp_path, w=torch.tensor([[v, -v]]), b=torch.tensor([2 * v]))
        for v in (1.0, 2.0, 6.0)
    ]
    mean = average_weights(paths)
    assert mean["w"].tolist() == [[3.0, -3.0]]
    assert mean["b"].tolist() == [6.0]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=9))
def test_the_average_is_rounded_once(values: list[float]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            saved(Path(folder), w=torch.tensor([v], dtype=torch.float32))
            for v in values
        ]
        mean = average_weights(paths)["w"]
    exact = math.fsum(values) / len(values)
    expected = torch.tensor([exact], dtype=torch.float32)
    torch.testing.assert_close(mean, expected, rtol=1e-7, atol=1e-30)


def test_the_average_of_one_is_itself(tmp_path: Path) -> None:
    weights = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    mean = average_weights([saved(tmp_path, w=weights)])
    assert torch.equal(mean["w"], weights)


def test_the_average_keeps_the_type(tmp_path: Path) -> None:
    for kind in (torch.float64, torch.bfloat16):
        path = saved(tmp_path, w=torch.ones(2, dtype=kind))
        assert average_weights([path])["w"].dtype == kind


def test_no_checkpoints_have_no_average() -> None:
    with pytest.raises(ValueError, match="no checkpoints"):
        average_weights([])


@pytest.mark.parametrize(
    "other",
    [{"w": torch.ones(3)}, {"v": torch.ones(2)}, {}],
    ids=["another shape", "another name", "nothing"],
)
def test_weights_of_two_models_are_not_averaged(
    tmp_path: Path, other: dict[str, torch.Tensor]
) -> None:
    one, two = saved(tmp_path, w=torch.ones(2)), saved(tmp_path, **other)
    for pair in ([one, two], [two, one]):
        with pytest.raises(RunError, match="the model: [vw] is") as caught:
            average_weights(pair)
        assert str(pair[1]) in str(caught.value)


@pytest.mark.parametrize("cut", [0, 4, 30, -1])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, cut: int) -> None:
    path = saved(tmp_path, w=torch.ones(20))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=f"{path.name} cannot be read"):
        average_weights([path])


def test_an_absent_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="absent.safetensors"):
        average_weights([tmp_path / "absent.safetensors"])
