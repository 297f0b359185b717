"""Chapter 19: what a run costs, and what is known before it begins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from annotated import costs
from annotated.costs import (
    PAPER_HOURS,
    dry_run,
    forward_flops,
    kept_bytes,
    matmul_speed,
    paper_cost,
    state_bytes,
    step_flops,
    useful_share,
    with_pieces,
)
from annotated.engine import data
from annotated.engine.packing import PackedTransformer
from annotated.engine.recipes import RECIPES, Recipe
from annotated.engine.trainer import RunConfig, packed_loss, split_batch
from annotated.model import Transformer, TransformerConfig, count_parameters
from annotated.training import copy_corpus


def shape(vocab: int = 37_000, **changes: Any) -> TransformerConfig:
    return TransformerConfig(src_vocab=vocab, tgt_vocab=vocab, **changes)


# --- operations -----------------------------------------------------------


def test_the_base_models_operations_add_up_by_hand() -> None:
    """Weights by the side that meets them, in sentences of 28 tokens."""
    attention, feed = 4 * 512**2, 2 * 512 * 2048
    source = 6 * (attention + feed) + 6 * 2 * 512**2
    target = 6 * (attention + 2 * 512**2 + feed) + 37_000 * 512
    assert round(source / 1e6, 1) == 22.0
    assert round(target / 1e6, 1) == 41.0
    mixing = 15 * 28 * 1024  # 6 full, 6 half, 6 across
    total = forward_flops(shape())
    assert total == 2 * (source + target + mixing)
    assert round(total / 1e6, 1) == 126.8


@pytest.mark.parametrize(
    ("config", "millions"),
    [
        (shape(), 380),
        (TransformerConfig.big(src_vocab=37_000, tgt_vocab=37_000), 1289),
    ],
)
def test_training_takes_three_times_the_forward_pass(
    config: TransformerConfig, millions: int
) -> None:
    assert round(3 * forward_flops(config) / 1e6) == millions


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"num_encoder_layers": 3, "num_decoder_layers": 1},
        {"d_k": 8, "d_v": 24},
        {"d_ff": 32, "num_heads": 2},
    ],
)
def test_operations_are_what_torch_counts(change: dict[str, Any]) -> None:
    config = shape(50, **({"d_model": 64, "num_heads": 4} | change))
    ids = torch.randint(4, 50, (4, 28))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        Transformer(config)(ids, ids)
    # torch counts the masked half of the decoder's attention
    both = config.num_heads * (config.key_size + config.value_size)
    masked = config.num_decoder_layers * both * 28
    ours = ids.numel() * (forward_flops(config, 28) + masked)
    assert counter.get_total_flops() == pytest.approx(ours, rel=1e-9)


# --- memory ---------------------------------------------------------------


def really_kept(config: TransformerConfig, corpus: Any, pairs: Any) -> int:
    model = PackedTransformer(config)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage()
        if place.data_ptr() not in own:
            seen[place.data_ptr()] = place.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        loss = packed_loss(model, corpus.batch(pairs), RunConfig())[0]
    total = sum(seen.values())
    del loss
    return total


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"d_ff": 512},
        {"num_encoder_layers": 4},
        {"d_model": 32, "num_heads": 8},
        {"dropout": 0.0},
    ],
)
def test_what_a_forward_pass_keeps_is_about_what_is_said(
    change: dict[str, Any],
) -> None:
    small = {
        "d_model": 64,
        "d_ff": 256,
        "num_heads": 4,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
    }
    config = shape(100, **(small | change))
    corpus = copy_corpus(200, vocab=100, length=54)
    pairs = corpus.plan(1500, seed=0, epoch=0)[2]
    batch = corpus.batch(pairs)
    length = batch.tokens / len(pairs)
    said = batch.tokens * kept_bytes(config, round(length))
    assert 0.7 < said / really_kept(config, corpus, pairs) < 1.5


def test_a_weight_takes_16_bytes() -> None:
    config = shape(100, d_model=64, num_heads=4)
    model = Transformer(config)
    optimizer = torch.optim.Adam(model.parameters())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    held = [
        t
        for p in model.parameters()
        for t in (p, p.grad, *optimizer.state[p].values())
        if t is not None and t.dim()
    ]
    assert state_bytes(config) == sum(t.nbytes for t in held)


def test_a_share_that_does_not_fit_is_taken_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = RECIPES["wmt14-en-de-base"]
    config = recipe.model.config(recipe.vocab, recipe.vocab)
    need = state_bytes(config) + 25_000 * kept_bytes(config)
    for memory, fits in ((2 * need, True), (need, False)):
        monkeypatch.setattr(costs, "device_bytes", lambda _, m=memory: m)
        made = with_pieces(recipe, "cpu")
        assert (made == recipe) is fits
    most = made.training.micro_tokens
    assert most is not None and 5000 < most < 20_000
    assert made.changed(micro_tokens=None) == recipe
    monkeypatch.setattr(costs, "world_size", lambda: 2)
    assert with_pieces(recipe, "cpu") == recipe
    monkeypatch.undo()
    own = recipe.changed(micro_tokens=77)
    assert with_pieces(own, "cpu") == own


# --- the paper's cost -----------------------------------------------------


def test_table_2s_costs_come_out() -> None:
    assert f"{paper_cost(PAPER_HOURS['base']):.1e}" == "3.3e+18"
    assert f"{paper_cost(PAPER_HOURS['big']):.1e}" == "2.3e+19"
    # others' cost by the same rule: K80, K40, M40 at 2.8, 3.7, 6.0
    assert paper_cost(1.0, 1, 2.8e12) == 3600 * 2.8e12


def test_the_papers_machine_was_used_to_a_third_or_so() -> None:
    assert 0.25 < useful_share("base") < 0.33
    assert 0.38 < useful_share("big") < 0.46
    recipe = RECIPES["wmt14-en-de-base"]
    needed = step_flops(recipe) * recipe.training.max_steps
    assert f"{needed:.1e}" == "9.5e+17"


# --- a dry run ------------------------------------------------------------


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a dry run asked for data")

    for name in ("load_pairs", "synthetic_pairs"):
        monkeypatch.setattr(data, name, refuse)
    monkeypatch.setattr(costs, "matmul_speed", lambda *_: 1e12)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_dry_run_without_data(
    name: str, no_data: None
) -> None:
    said = dry_run(RECIPES[name], "cpu")
    for what in ("parameters", "GiB", "a step", "hours, 8 × P100"):
        assert what in said


def test_a_dry_run_of_the_papers_models_gives_the_papers_hours(
    no_data: None,
) -> None:
    base = dry_run(RECIPES["wmt14-en-de-base"], "cpu")
    big = dry_run(RECIPES["wmt14-en-de-big"], "cpu")
    assert "hours, 8 × P100 12.0" in base
    assert "3.3e+18" in base
    assert "hours, 8 × P100 84.0" in big
    assert "2.3e+19" in big
    # 9.5e17 operations at 1 TFLOP/s are 264 hours
    assert "264.2 at all of it" in base


def test_several_processes_share_the_hours_and_the_batch(
    no_data: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    said = dry_run(RECIPES["wmt14-en-de-base"], "cpu")
    assert "6,250 tokens at once" in said
    assert "66.1 at all of it" in said


def test_a_matrix_product_has_a_speed() -> None:
    speed = matmul_speed("cpu", budget=0.02)
    assert 1e8 < speed < 1e15


def test_a_batch_is_taken_in_as_few_pieces_as_will_do() -> None:
    corpus = copy_corpus(100, length=20)
    pairs = max(corpus.plan(1000, seed=0, epoch=0), key=len)
    pieces = split_batch(corpus, pairs, 1, 300)
    assert len(pieces) == 4


def test_a_dry_run_is_of_the_recipe_as_it_is_given(no_data: None) -> None:
    small = Recipe(about="", data="", vocab=100).changed(
        d_model=64, num_heads=4
    )
    count = count_parameters(small.model.config(100, 100))
    assert f" {count:,} parameters" in dry_run(small, "cpu")
