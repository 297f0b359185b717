"""What runs on a CUDA device gives what runs on a CPU.

`python -m pytest -m gpu`; without such a device they are skipped. In
benchmarks/gpu.py they are a section.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from annotated.attention import attend, attention
from annotated.batches import Batch
from annotated.engine.search import beam_search, search_in_order
from annotated.layers import Dropout
from annotated.loss import smoothed_loss
from annotated.masks import padding_mask
from annotated.model import Transformer, TransformerConfig
from annotated.schedule import make_optimizer, set_learning_rate
from annotated.search import SearchConfig, plain_beam_search
from annotated.training import (
    Trainer,
    TrainingConfig,
    batch_loss,
    copy_corpus,
    greedy_accuracy,
    validate,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a CUDA device"
    ),
]


def model_of(device="cuda", dtype=torch.float32, **changes):
    """A small model with the same weights on every device."""
    shape = {
        "src_vocab": 40, "tgt_vocab": 40, "num_encoder_layers": 2,
        "num_decoder_layers": 2, "d_model": 64, "d_ff": 128,
        "num_heads": 4, "dropout": 0.0,
    }  # fmt: skip
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(**(shape | changes)))
    return model.to(device, dtype)


def batch_of(device="cuda", pairs=30) -> Batch:
    corpus = copy_corpus(pairs, vocab=40, length=14, backwards=True)
    return corpus.batch(range(pairs)).to(device)


# --- attention ------------------------------------------------------------


def heads(q_len, k_len, dtype):
    draw = torch.Generator("cuda").manual_seed(0)
    shapes = [(3, 4, n, 32) for n in (q_len, k_len, k_len)]
    return [
        torch.randn(
            *shape, generator=draw, device="cuda", dtype=torch.float64
        )
        .to(dtype)
        .requires_grad_()
        for shape in shapes
    ]


@pytest.mark.parametrize("masked", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float64, 1e-10),
        (torch.float32, 1e-4),
        (torch.bfloat16, 3e-2),
    ],
)
@pytest.mark.parametrize("length", [7, 130])
def test_fused_attention_is_equation_1(
    length, dtype, tolerance, causal, masked
):
    q, k, v = heads(length, length, dtype)
    mask = None
    if masked:
        ids = torch.ones(3, length, dtype=torch.long, device="cuda")
        ids[1, 5:] = 0
        ids[2] = 0  # nothing may be attended to
        mask = padding_mask(ids)
    plain = mask
    if causal:
        past = torch.ones(length, length, device="cuda").tril().bool()
        plain = past if mask is None else mask & past
    found = attend(q, k, v, mask, causal=causal)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    wanted = attention(*exact, plain)
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(found.double(), wanted, **close)
    grad = torch.ones_like(found)
    ours = torch.autograd.grad(found, (q, k, v), grad)
    theirs = torch.autograd.grad(wanted, exact, grad.double())
    for one, other in zip(ours, theirs):
        error = (one.double() - other).norm() / other.norm()
        assert error < tolerance


# --- loss and dropout -----------------------------------------------------


@pytest.mark.parametrize("rows", [None, 7])
def test_the_chunked_loss_is_torchs(rows):
    draw = torch.Generator("cuda").manual_seed(0)
    kind = {"generator": draw, "device": "cuda", "dtype": torch.float64}
    x = torch.randn(50, 16, **kind).requires_grad_()
    weight = torch.randn(90, 16, **kind).requires_grad_()
    labels = torch.randint(90, (50,), device="cuda", generator=draw)
    loss, _ = smoothed_loss(x, weight, labels, 0.1, rows)
    theirs = F.cross_entropy(
        x @ weight.T, labels, label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(loss, theirs, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        torch.autograd.grad(loss, (x, weight)),
        torch.autograd.grad(theirs, (x, weight)),
        rtol=1e-10,
        atol=1e-10,
    )


def test_dropout_drops_at_its_rate():
    torch.manual_seed(0)
    x = torch.ones(1_000_000, device="cuda")
    dropped = Dropout(0.1)(x)
    assert (dropped == 0).float().mean().item() == pytest.approx(
        0.1, abs=0.002
    )
    kept = dropped[dropped > 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.9))


# --- a step ---------------------------------------------------------------


def loss_and_gradients(model, batch, precision="float32"):
    config = TrainingConfig(precision=precision)
    loss, nll, tokens = batch_loss(model, batch, config)
    (loss / tokens).backward()
    gradients = {n: p.grad.cpu() for n, p in model.named_parameters()}
    return loss.item() / tokens, nll.item() / tokens, gradients


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_loss_and_gradient_are_those_of_the_cpu(norm):
    double = {"dtype": torch.float64, "norm": norm}
    cpu = loss_and_gradients(model_of("cpu", **double), batch_of("cpu"))
    gpu = loss_and_gradients(model_of("cuda", **double), batch_of("cuda"))
    assert gpu[0] == pytest.approx(cpu[0], rel=1e-10)
    assert gpu[1] == pytest.approx(cpu[1], rel=1e-10)
    for name, gradient in cpu[2].items():
        torch.testing.assert_close(
            gpu[2][name], gradient, rtol=1e-7, atol=1e-12
        )


def test_bfloat16_comes_close_to_float32():
    exact = loss_and_gradients(model_of(), batch_of())
    half = loss_and_gradients(model_of(), batch_of(), "bfloat16")
    assert half[0] == pytest.approx(exact[0], rel=0.01)
    assert half[1] == pytest.approx(exact[1], rel=0.01)
    all_of = [
        torch.cat([g.flatten() for g in found[2].values()])
        for found in (half, exact)
    ]
    assert F.cosine_similarity(*all_of, dim=0) > 0.99
    for gradient in half[2].values():
        assert gradient.dtype == torch.float32


def test_compiled_layers_give_the_same_loss():
    plain = loss_and_gradients(model_of(), batch_of())
    model = model_of()
    for stack in (model.encoder, model.decoder):
        for layer in stack.layers:
            layer.compile(dynamic=True)
    compiled = loss_and_gradients(model, batch_of())
    assert compiled[0] == pytest.approx(plain[0], rel=1e-4)
    for name, gradient in plain[2].items():
        torch.testing.assert_close(
            compiled[2][name], gradient, rtol=1e-2, atol=1e-4
        )


def test_fused_adam_takes_the_steps_of_the_cpu():
    cpu = torch.nn.Parameter(torch.linspace(-1, 1, 1000).double())
    gpu = torch.nn.Parameter(cpu.detach().cuda())
    pair = (cpu, make_optimizer([cpu])), (gpu, make_optimizer([gpu]))
    assert pair[1][1].defaults["fused"]
    draw = torch.Generator().manual_seed(0)
    for step in range(1, 30):
        gradient = torch.randn(1000, generator=draw).double()
        for parameter, optimizer in pair:
            parameter.grad = gradient.to(parameter.device)
            set_learning_rate(optimizer, 0.01 / step)
            optimizer.step()
    torch.testing.assert_close(gpu.cpu(), cpu, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_copy_task_is_learned(precision):
    model = model_of(src_vocab=20, tgt_vocab=20)
    config = TrainingConfig(
        batch_tokens=1000, max_steps=400, warmup=100, rate=0.5,
        precision=precision,
    )  # fmt: skip
    corpus = copy_corpus(5000, vocab=20)
    losses = [p.loss for p in Trainer(model, corpus, config).steps()]
    assert all(map(math.isfinite, losses))
    unseen = copy_corpus(300, vocab=20, seed=1)
    tokens, _ = greedy_accuracy(model, unseen)
    assert tokens > 0.95
    assert validate(model, unseen, config)["nll"] < 0.3


def test_a_run_taken_up_again_goes_on():
    config = TrainingConfig(batch_tokens=300, max_steps=8, warmup=4)
    corpus = copy_corpus(200, vocab=20)
    whole = model_of(src_vocab=20, tgt_vocab=20, dropout=0.1)
    half = copy.deepcopy(whole)
    list(Trainer(whole, corpus, config).steps())
    first = Trainer(half, corpus, config)
    for progress in first.steps():
        if progress.step == 4:
            break
    second = Trainer(copy.deepcopy(half), corpus, config)
    second.load_state(copy.deepcopy(first.state()))
    list(second.steps())
    for one, other in zip(whole.parameters(), second.model.parameters()):
        # the order of additions is not fixed on a GPU
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


# --- search ---------------------------------------------------------------


@pytest.fixture(scope="module")
def sentences() -> list[list[int]]:
    corpus = copy_corpus(24, vocab=40, length=9, seed=3)
    return [corpus.src[i].tolist() for i in range(24)]


@pytest.mark.parametrize("beam", [1, 4])
def test_search_finds_what_it_finds_on_a_cpu(beam, sentences):
    search = SearchConfig(beam=beam, extra=8, nbest=min(beam, 2))
    found = [
        beam_search(model_of(device, torch.float64), sentences, search)
        for device in ("cuda", "cpu")
    ]
    for gpu, cpu in zip(*found):
        assert [h.ids for h in gpu] == [h.ids for h in cpu]
        assert [h.score for h in gpu] == pytest.approx(
            [h.score for h in cpu], rel=1e-9
        )


def test_fast_search_is_plain_search(sentences):
    model = model_of(dtype=torch.float64)
    search = SearchConfig(beam=3, extra=5)
    fast = search_in_order(model, sentences[:8], search, batch_tokens=40)
    for source, found in zip(sentences, fast):
        (best,) = plain_beam_search(model, source, search)
        assert found[0].ids == best.ids


def test_search_in_bfloat16_runs_and_ends(sentences):
    model = model_of(dtype=torch.bfloat16)
    search = SearchConfig(beam=4, extra=5)
    found = search_in_order(model, sentences, search)
    assert len(found) == len(sentences)
    for source, (best,) in zip(sentences, found):
        assert len(best.ids) < len(source) + 5
        assert math.isfinite(best.score)
