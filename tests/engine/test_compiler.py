"""A compiler that learns something else is refused: engine.compiler, from
page E2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from annotated.engine import compiler
from annotated.engine.compiler import check_compiler, wrong_gradients
from annotated.engine.errors import RunError
from annotated.engine.parts import PartsConfig
from annotated.engine.recipes import RECIPES
from annotated.engine.runner import train_recipe
from annotated.model import Transformer, TransformerConfig
from tests.helpers import SHAPE

CONFIG = TransformerConfig(**SHAPE)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Each test asks anew."""
    wrong_gradients.cache_clear()
    yield
    wrong_gradients.cache_clear()


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Let the compiler be a function; returns the models it was given."""

    def put(fake: Callable[[Transformer], None]) -> list[Any]:
        given: list[Any] = []

        def noted(model: Transformer) -> None:
            given.append(model)
            fake(model)

        monkeypatch.setattr(compiler, "compile_layers", noted)
        return given

    return put


def fine(model: Transformer) -> None:
    """A compiler that changes nothing."""


def lose(model: Transformer) -> None:
    """As torch 2.11 did with what ends in place."""
    block: Any = model.encoder.layers[0].attention  # type: ignore
    heads = block.w_o.forward
    block.w_o.forward = lambda x: heads(x.detach())


def double(model: Transformer) -> None:
    weight: Any = model.get_parameter("decoder.layers.0.norm3.bias")
    weight.register_hook(lambda gradient: 2 * gradient)


def spoil(model: Transformer) -> None:
    weight: Any = model.get_parameter("decoder.layers.0.norm3.bias")
    weight.register_hook(lambda gradient: gradient * float("nan"))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("broken", [lose, double, spoil])
def test_a_version_whose_compiler_is_wrong_is_refused_by_name(
    compiles: Any, monkeypatch: Any, broken: Any, precision: Any
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.11.7")
    compiles(broken)
    told = r"torch 2\.11\.7 compiles this model wrongly on cpu"
    with pytest.raises(RunError, match=told) as refused:
        check_compiler(CONFIG, precision, "cpu")
    name = "decoder.layers.0.norm3.bias"
    if broken is lose:
        name = "encoder.layers.0.attention.w_v.weight"
    assert name in wrong_gradients(CONFIG, precision, "cpu")
    assert "of 1 param" in str(refused.value) or broken is lose


def test_nothing_is_begun_with_a_compiler_that_is_wrong(
    compiles: Any, tmp_path: Path
) -> None:
    compiles(lose)
    recipe = RECIPES["copy"].changed(compile=True)
    with pytest.raises(RunError, match="compiles this model wrongly"):
        train_recipe(recipe, tmp_path / "run", device="cpu")
    assert [*tmp_path.iterdir()] == []


def test_a_kind_of_model_is_compiled_once(compiles: Any) -> None:
    """In its own width, with few words, and a layer in each stack."""
    given = compiles(fine)
    deep = replace(CONFIG, num_encoder_layers=3, dropout=0.3)
    before = torch.get_rng_state()
    for config in (deep, deep, CONFIG, deep):
        check_compiler(config, "float32", "cpu")
    check_compiler(deep, "bfloat16", "cpu")
    assert [m.config.d_model for m in given] == [SHAPE["d_model"]] * 3
    assert {len(m.encoder.layers) for m in given} == {1}
    assert {m.config.dropout for m in given} == {0.0}
    assert torch.equal(torch.get_rng_state(), before)


def test_each_window_of_a_stack_is_looked_at(compiles: Any) -> None:
    given = compiles(fine)
    shape = SHAPE | {"num_encoder_layers": 4, "num_decoder_layers": 4}
    config = PartsConfig(**shape, windows=(4, 0))
    check_compiler(config, "float32", "cpu")
    assert [len(m.decoder.layers) for m in given] == [2]


def test_what_rounding_alone_moves_is_no_difference(compiles: Any) -> None:
    """Ten percent in 16 bits, and anything where the gradient is zero."""

    def round_otherwise(model: Transformer) -> None:
        for name, weight in model.named_parameters():
            factor = -1.0 if name.endswith("w_k.bias") else 1.1
            weight.register_hook(lambda g, factor=factor: factor * g)

    compiles(round_otherwise)
    check_compiler(CONFIG, "bfloat16", "cpu")
    wrong = wrong_gradients(CONFIG, "float32", "cpu")
    assert len(wrong) > 20 and not any("w_k.bias" in one for one in wrong)


def test_a_machine_without_a_compiler_is_told_why(compiles: Any) -> None:
    def none(model: Transformer) -> None:
        raise RuntimeError("no compiler here\nand much more")

    compiles(none)
    told = r"on cpu \(no compiler here\): omit --compile"
    with pytest.raises(RunError, match=told):
        check_compiler(CONFIG, "float32", "cpu")

    def silent(model: Transformer) -> None:
        raise AssertionError

    compiles(silent)
    with pytest.raises(RunError, match=r"on cpu \(AssertionError\)"):
        check_compiler(CONFIG, "float32", "cpu")
    compiles(fine)
    check_compiler(CONFIG, "auto", "cpu")  # it may come to have one
