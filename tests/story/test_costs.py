"""What a run costs, and what is known before it begins (chapter 22)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from annotated import costs
from annotated.costs import (
    _PAPER_STEPS,
    PAPER_HOURS,
    _two,
    forward_flops,
    kept_bytes,
    paper_cost,
    state_bytes,
    step_flops,
    useful_share,
)
from annotated.engine import fit
from annotated.engine import parts as engine_parts
from annotated.engine.fit import _LOGITS, with_micro_tokens
from annotated.engine.kernels import Chosen
from annotated.engine.packing import PackedTransformer
from annotated.engine.parts import PartsConfig, trainable
from annotated.engine.recipes import RECIPES
from annotated.engine.trainer import RunConfig, packed_loss
from annotated.masks import causal_mask, window_mask
from annotated.model import (
    Transformer,
    TransformerConfig,
    count_parameters,
)
from annotated.training import copy_corpus


def parts(vocab: int, **changes: Any) -> PartsConfig:
    return PartsConfig(src_vocab=vocab, tgt_vocab=vocab, **changes)


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


def test_longer_sentences_cost_a_step_what_attention_adds() -> None:
    """15 · 1024 products more for each position more: 6 full rows, 6 half
    ones, 6 across; and forward, backward twice that.
    """
    more = step_flops(shape(), 1000, 30) - step_flops(shape(), 1000, 20)
    assert more == 3 * 1000 * 2 * 15 * 1024 * 10


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
        {"positions": "rotary"},
        {"positions": "relative", "norm_kind": "rms"},
        {"positions": "alibi"},
        {"num_kv_heads": 2, "qk_norm": True},
        {"num_kv_heads": 1, "d_k": 8, "d_v": 8},
        {"gated": True, "activation": "silu", "d_ff": 100},
    ],
)
def test_operations_are_what_torch_counts(change: dict[str, Any]) -> None:
    config = parts(50, **({"d_model": 64, "num_heads": 4} | change))
    ids = torch.randint(4, 50, (4, 28))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        Transformer(config)(ids, ids)
    # torch counts the masked half of the decoder's attention
    both = config.num_heads * (config.key_size + config.value_size)
    masked = config.num_decoder_layers * both * 28
    ours = ids.numel() * (forward_flops(config, 28) + masked)
    assert counter.get_total_flops() == pytest.approx(ours, rel=1e-9)


@pytest.mark.parametrize(
    "change", [{"window": 8}, {"windows": (8, 0)}, {"windows": (6, 10)}]
)
def test_in_a_window_a_query_sees_fewer_keys(
    change: dict[str, Any],
) -> None:
    """As many as the masks allow, but for the ends of a sentence."""
    config, n = parts(50, d_model=64, num_heads=4, **change), 200
    both, seen = 64 + 64, 6.0 * n  # cross-attention sees all
    windows = change.get("windows", (8, 8))
    for window in windows * 3:
        near = window_mask(n, window) if window else torch.ones(n, n).bool()
        seen += (near.sum() + (near & causal_mask(n)).sum()).item() / n
    plain = parts(50, d_model=64, num_heads=4)
    more = forward_flops(plain, n) - forward_flops(config, n)
    assert more == pytest.approx(2 * both * (15 * n - seen), rel=0.02)


def test_an_odd_window_reaches_as_far_as_the_even_one_below() -> None:
    even, odd = (parts(50, window=window) for window in (2, 3))
    assert forward_flops(odd, 200) == forward_flops(even, 200)


def test_a_model_of_ones_own_is_counted_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_parts, "_REGISTERED", {})

    @engine_parts.register("part", "gate", of=Transformer)
    class Gate(Transformer):
        def __init__(self, config: TransformerConfig):
            super().__init__(config)
            self.gate = torch.nn.Linear(7, 11)

    more = count_parameters(parts(50, parts=("gate",)))
    assert more == count_parameters(parts(50)) + 7 * 11 + 11


# --- memory ---------------------------------------------------------------


def really_kept(
    config: TransformerConfig, batch: Any, precision: Any
) -> int:
    model, _ = trainable(Transformer(config))
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage()
        if place.data_ptr() not in own:
            seen[place.data_ptr()] = place.nbytes()
        return tensor.detach()  # itself would hold its own node, for ever

    settings = RunConfig(precision=precision)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        loss, _ = packed_loss(model, batch, settings)
    total = sum(seen.values())
    del loss
    return total


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"d_ff": 512},
        {"num_encoder_layers": 4},
        {"d_model": 32, "num_heads": 8},
        {"dropout": 0.0},
        {"num_heads": 16},
        {"d_k": 8, "d_v": 24},
        {"d_k": 32, "d_v": 16},
        {"activation": "silu", "d_ff": 512},
        {"activation": "gelu", "output_bias": True},
        {"attention_dropout": 0.1},
        {"activation_dropout": 0.1},
        {"positions": "rotary", "num_kv_heads": 2},
        {"positions": "relative"},
        {"positions": "alibi", "norm_kind": "rms"},
        {"qk_norm": True, "num_kv_heads": 1},
        {"gated": True, "activation": "silu", "windows": (8, 0)},
    ],
)
def test_what_a_forward_pass_keeps_is_what_is_said(
    change: dict[str, Any], precision: str
) -> None:
    small = {
        "d_model": 64,
        "d_ff": 256,
        "num_heads": 4,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
    }
    config = parts(100, **(small | change))
    unlike = config.key_size != config.value_size
    if unlike and precision != "float32" and torch.__version__ < "2.5":
        pytest.skip("2.3 keeps fewer copies where no kernel is fused")
    corpus = copy_corpus(1000, vocab=100, length=54)
    batch = corpus.batch(corpus.plan(6000, seed=0, epoch=0)[2])
    length = batch.src.size(1)
    said = batch.tokens * kept_bytes(config, length, precision)
    # the matrices' copies, which the state has
    said += state_bytes(config, precision) - state_bytes(config)
    assert 0.9 < said / really_kept(config, batch, precision) < 1.1


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_one_kernel_a_sentence_keeps_its_inputs_and_its_heads(
    monkeypatch: pytest.MonkeyPatch, positions: str
) -> None:
    """The operator's saved tensors, on a CPU."""
    if torch.__version__ < "2.4":
        pytest.skip("torch 2.3 has no operators")
    config = parts(
        100, d_model=64, d_ff=64, num_heads=4, num_encoder_layers=2,
        num_decoder_layers=2, dropout=0.0, positions=positions,
    )  # fmt: skip
    monkeypatch.setattr(
        PackedTransformer, "_kernel", lambda *_: "sentences"
    )
    monkeypatch.setattr(
        costs, "choose", lambda *_: Chosen("", "sentences", "chunks")
    )
    corpus = copy_corpus(200, vocab=100, length=54)
    batch = corpus.batch(corpus.plan(1500, seed=0, epoch=0)[0])
    said = batch.tokens * kept_bytes(config, batch.src.size(1))
    assert 0.9 < said / really_kept(config, batch, "float32") < 1.1


@pytest.mark.parametrize(
    ("change", "precision", "device", "by_hand"),
    [
        # 7 sub-layers of d = 10, 4 attentions of 2 heads, 3 networks, and
        # both ends: norms, masks, q k v, heads twice, sums, hidden, ends
        ({}, "float32", "cpu",
         4 * (140 + 70 + 4 * 2 * 9 + 4 * 2 * 6 + 8 + 60 + 40)),
        ({"dropout": 0.0}, "float32", "cpu",
         4 * (140 + 0 + 4 * 2 * 9 + 4 * 2 * 6 + 8 + 60 + 20)),
        ({"activation": "silu"}, "float32", "cpu",
         4 * (140 + 70 + 4 * 2 * 9 + 4 * 2 * 6 + 8 + 2 * 60 + 40)),
        # without a fused kernel 28 weights a row, not the heads apart
        ({"d_v": 5}, "float32", "cpu",
         4 * (140 + 70 + 4 * 2 * 11 + 4 * 2 * (28 + 5) + 8 + 60 + 40)),
        # norms and sums have 4 bytes, and a norm's output a copy of 2; an
        # attention has 2, also for its 28 weights
        ({}, "bfloat16", "cpu",
         70 * 8 + 70 * 2 + 4 * 2 * (9 + 28 + 3) * 2 + 60 * 2 + 20 * 6),
        # in float16 it has 4 on a CPU, but for the heads side by side
        ({}, "float16", "cpu",
         70 * 8 + 70 * 2 + 4 * 2 * (12 * 4 + 3 * 2) + 32 + 60 * 2
         + 20 * 6),
        # a GPU's masks have one byte
        ({}, "bfloat16", "cuda",
         70 * 8 + 70 + 4 * 2 * 15 * 2 + 32 + 60 * 2 + 20 * 5),
        ({"d_v": 5}, "float32", "cuda",
         70 * 8 + 70 + 4 * 2 * 21 * 4 + 32 + 60 * 4 + 20 * 5),
    ],
)  # fmt: skip
def test_what_a_token_keeps_adds_up_by_hand(
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    precision: str,
    device: str,
    by_hand: int,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    small: dict[str, Any] = {
        "d_model": 10, "d_ff": 20, "num_heads": 2, "d_k": 3, "d_v": 3,
        "num_encoder_layers": 2, "num_decoder_layers": 1,
    }  # fmt: skip
    config = shape(100, **(small | change))
    kept = kept_bytes(config, precision=precision, device=device)
    assert kept == by_hand


def test_attention_keeps_its_weights_up_to_256_keys() -> None:
    config = shape(100, d_model=64, num_heads=4)
    kept = [kept_bytes(config, n, "bfloat16") for n in (255, 256, 257)]
    assert kept[2] < kept[0] < kept[1]


def test_a_gpu_keeps_smaller_masks_and_no_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plain = shape(100, d_model=64, num_heads=4, dropout=0.0)
    assert kept_bytes(plain, device="cuda") == kept_bytes(plain)
    noisy = shape(100, d_model=64, num_heads=4, dropout=0.1)
    assert kept_bytes(noisy, device="cuda") < kept_bytes(noisy)
    odd = shape(100, d_model=64, num_heads=4, d_k=8, d_v=32)
    longer = [kept_bytes(odd, n, device="cuda") for n in (10, 100)]
    assert longer[0] == longer[1]
    assert kept_bytes(odd, 10) < kept_bytes(odd, 100)


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


def test_a_share_that_does_not_fit_is_taken_in_micro_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = RECIPES["wmt14-en-de-base"]
    config = recipe.config()
    need = (
        state_bytes(config) + 25_000 * kept_bytes(config) + _LOGITS["cpu"]
    )
    made = recipe
    for memory, fits in ((1.51 * need, True), (need, False)):
        monkeypatch.setattr(fit, "memory_bytes", lambda _, m=memory: m)
        made = with_micro_tokens(recipe, "cpu")
        assert (made == recipe) is fits
    most = made.training.micro_tokens
    assert most is not None and 5000 < most < 25_000
    assert made.changed(micro_tokens=None) == recipe
    own = recipe.changed(micro_tokens=77)
    assert with_micro_tokens(own, "cpu") == own
    monkeypatch.setattr(fit, "world_size", lambda: 2)
    assert with_micro_tokens(recipe, "cpu") == recipe


def test_a_sharded_process_is_charged_for_its_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A quarter of the state, and one matrix of embeddings with its
    gradient whole.
    """
    recipe = RECIPES["wmt14-en-de-big"]
    config, kept = recipe.config(), kept_bytes(recipe.config())
    state = state_bytes(config)
    monkeypatch.setattr(fit, "world_size", lambda: 4)
    memory = 1.5 * (state + 1000 * kept + _LOGITS["cpu"])
    monkeypatch.setattr(fit, "memory_bytes", lambda _: memory)
    found = {
        shard: with_micro_tokens(recipe, "cpu", shard).training.micro_tokens
        for shard in (False, True)
    }
    assert found[False] == 1000
    saved = state - state // 4 - 8 * 37_000 * 1024
    assert found[True] == int(1000 + saved / kept)


def test_apples_gpu_has_a_share_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = RECIPES["wmt14-en-de-base"]
    monkeypatch.setattr(fit, "memory_bytes", lambda _: 2.0**60)
    assert with_micro_tokens(recipe, "mps") == recipe


# --- the paper's cost -----------------------------------------------------


def test_table_2s_costs_come_out() -> None:
    assert f"{paper_cost(PAPER_HOURS['base']):.1e}" == "3.3e+18"
    assert f"{paper_cost(PAPER_HOURS['big']):.1e}" == "2.3e+19"
    # others' cost by the same rule: K80, K40, M40 at 2.8, 3.7, 6.0
    assert paper_cost(1.0, 1, 2.8e12) == 3600 * 2.8e12


def test_the_papers_machine_was_used_to_a_third_or_so() -> None:
    assert 0.25 < useful_share("base") < 0.33
    assert 0.38 < useful_share("big") < 0.46
    assert f"{step_flops(shape()) * _PAPER_STEPS['base']:.1e}" == "9.5e+17"


@pytest.mark.parametrize("size", PAPER_HOURS)
def test_the_recipes_are_the_papers_runs(size: str) -> None:
    recipe = RECIPES[f"wmt14-en-de-{size}"]
    assert recipe.training.max_steps == _PAPER_STEPS[size]
    config = recipe.config(37_000, 37_000)
    needed = step_flops(config, recipe.training.batch_tokens)
    needed *= recipe.training.max_steps
    share = needed / paper_cost(PAPER_HOURS[size])
    assert share == pytest.approx(useful_share(size))


def test_a_bill_adds_up_by_hand() -> None:
    # 3,600 operations per second, of which two devices use half: two hours
    hours, energy, rent, electricity = costs.bill(
        2 * 3600 * 3600.0, 3600.0, 0.5, 2, 250.0, 3.0, 0.4, overhead=1.5
    )
    assert (hours, energy, rent) == pytest.approx((2.0, 1.5, 12.0))
    assert electricity == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (0.0, "0.0"),
        (0.0042, "0.0042"),
        (0.0996, "0.10"),
        (0.997, "1.0"),
        (9.96, "10"),
        (1234.0, "1,200"),
    ],
)
def test_a_forecast_has_two_digits(x: float, said: str) -> None:
    assert _two(x) == said
