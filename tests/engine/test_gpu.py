"""What one device computes is what another does.

Each test runs on every device that there is, the CPU among them.
`python -m pytest -m gpu` runs those of a CUDA device, which are skipped
where there is none; in benchmarks/gpu.py they are a section.
"""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from annotated.attention import attention
from annotated.batches import Batch, Corpus, Sentences
from annotated.engine import trainer
from annotated.engine.compiler import wrong_gradients
from annotated.engine.kernels import row_losses, slow_row_losses
from annotated.engine.packing import (
    FastDropout,
    PackedAttention,
    PackedMask,
    PackedTransformer,
    Packing,
    chunked_loss,
    compile_layers,
)
from annotated.engine.search import beam_search, search_in_order
from annotated.engine.trainer import RunConfig, Trainer, packed_loss
from annotated.masks import causal_mask, padding_mask
from annotated.model import TransformerConfig
from annotated.schedule import make_optimizer, set_learning_rate
from annotated.search import SearchConfig, plain_beam_search
from annotated.training import copy_corpus, greedy_accuracy, validate
from tests.engine.small import CountingBackend

NO_GPU = not torch.cuda.is_available()
GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(NO_GPU, reason="needs a CUDA device"),
]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=GPU)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def model_of(
    device: str, dtype: torch.dtype = torch.float32, **changes: Any
) -> PackedTransformer:
    """A small model with the same weights on every device."""
    shape: dict[str, Any] = {
        "src_vocab": 40, "tgt_vocab": 40, "num_encoder_layers": 2,
        "num_decoder_layers": 2, "d_model": 64, "d_ff": 128,
        "num_heads": 4, "dropout": 0.0,
    }  # fmt: skip
    torch.manual_seed(0)
    model = PackedTransformer(TransformerConfig(**(shape | changes)))
    return model.to(device, dtype)


def batch_of(device: str, pairs: int = 30) -> Batch:
    corpus = copy_corpus(pairs, vocab=40, length=14, backwards=True)
    return corpus.batch(range(pairs)).to(device)


# --- attention ------------------------------------------------------------


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
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
    device: str,
    length: int,
    dtype: torch.dtype,
    tolerance: float,
    causal: bool,
    padded: bool,
) -> None:
    torch.manual_seed(0)
    layer = PackedAttention(32, 4).to(device, dtype)
    real = torch.ones(3, length, dtype=torch.bool, device=device)
    if padded:
        real[1, 5:] = False
    packing = Packing.of(real.long())
    x = torch.randn(3, length, 32).to(device, dtype).requires_grad_()
    mask = PackedMask.to(packing, packing, causal=causal)
    found = packing.pad(layer(packing.pack(x), mask=mask))
    exact = copy.deepcopy(layer).double()
    leaf = x.detach().double().requires_grad_()
    q, k, v = (
        linear(leaf).unflatten(2, (4, 8)).transpose(1, 2)
        for linear in (exact.w_q, exact.w_k, exact.w_v)
    )
    seen = padding_mask(real.long())
    if causal:
        seen = seen & causal_mask(length, real.device)
    heads = attention(q, k, v, seen)
    wanted = exact.w_o(heads.transpose(1, 2).flatten(2)) * real[..., None]
    torch.testing.assert_close(
        found.double(), wanted, rtol=tolerance, atol=tolerance
    )
    grad = torch.ones_like(found)
    (ours,) = torch.autograd.grad(found, x, grad)
    (theirs,) = torch.autograd.grad(wanted, leaf, grad.double())
    error = (ours.double() - theirs).norm() / theirs.norm()
    assert error < tolerance


@pytest.mark.parametrize("kernel", ["sentences", "varlen"])
@pytest.mark.parametrize("longest", [14, 100])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.gpu
@pytest.mark.skipif(NO_GPU, reason="needs a CUDA device")
def test_a_model_without_the_rectangle_learns_the_same(
    kernel: str, longest: int, window: int | None
) -> None:
    """In 16 bits on the GPU, against float32 on it, padded."""
    found = []
    for precision, chosen in (("float32", "padded"), ("bfloat16", kernel)):
        model: Any = model_of("cuda", window=window)
        model._kernel = lambda *sides, chosen=chosen: chosen
        corpus = copy_corpus(30, vocab=40, length=longest)
        batch = corpus.batch(range(30)).to("cuda")
        found.append(loss_and_gradients(model, batch, precision))
    exact, half = found
    assert half[0] == pytest.approx(exact[0], rel=0.01)
    assert unlike(half[2], exact[2], rtol=0.1, atol=3e-3) == {}


# --- loss and dropout -----------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(NO_GPU, reason="needs a CUDA device")
def test_the_loss_of_a_row_is_its_slow_form_on_a_gpu() -> None:
    torch.manual_seed(0)
    logits = torch.randn(300, 37_000, device="cuda").bfloat16()
    labels = torch.randint(37_000, (300,), device="cuda")
    slow = slow_row_losses(logits.double(), labels, 0.1)
    for mine, exact in zip(row_losses(logits, labels, 0.1), slow):
        apart = (mine.double() - exact).norm() / exact.norm()
        assert apart < 1e-2


@pytest.mark.parametrize("rows", [None, 7])
def test_the_chunked_loss_is_torchs(device: str, rows: int | None) -> None:
    draw = torch.Generator(device).manual_seed(0)
    kind = {"generator": draw, "device": device, "dtype": torch.float64}
    x = torch.randn(50, 16, **kind).requires_grad_()
    weight = torch.randn(90, 16, **kind).requires_grad_()
    labels = torch.randint(90, (50,), device=device, generator=draw)
    loss, _ = chunked_loss(x, weight, labels, 0.1, rows)
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


def test_dropout_drops_at_its_rate(device: str) -> None:
    torch.manual_seed(0)
    x = torch.ones(1_000_000, device=device)
    dropped = FastDropout(0.1)(x)
    assert (dropped == 0).float().mean().item() == pytest.approx(
        0.1, abs=0.002
    )
    kept = dropped[dropped > 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.9))


# --- a step ---------------------------------------------------------------


Found = tuple[float, float, dict[str, Tensor]]


def loss_and_gradients(
    model: PackedTransformer, batch: Batch, precision: Any = "float32"
) -> Found:
    config = RunConfig(precision=precision)
    loss, nll = packed_loss(model, batch, config)
    (loss / batch.tokens).backward()
    gradients = {
        n: p.grad.cpu()
        for n, p in model.named_parameters()
        if p.grad is not None
    }
    tokens = batch.tokens
    return loss.item() / tokens, nll.item() / tokens, gradients


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_loss_and_gradient_are_those_of_the_cpu(
    device: str, norm: str
) -> None:
    double = {"dtype": torch.float64, "norm": norm}
    cpu = loss_and_gradients(model_of("cpu", **double), batch_of("cpu"))
    here = loss_and_gradients(model_of(device, **double), batch_of(device))
    assert here[0] == pytest.approx(cpu[0], rel=1e-10)
    assert here[1] == pytest.approx(cpu[1], rel=1e-10)
    assert unlike(here[2], cpu[2], rtol=1e-7, atol=1e-12) == {}


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_16_bits_come_close_to_float32(device: str, precision: Any) -> None:
    exact = loss_and_gradients(model_of(device), batch_of(device))
    half = loss_and_gradients(model_of(device), batch_of(device), precision)
    assert half[0] == pytest.approx(exact[0], rel=0.01)
    assert half[1] == pytest.approx(exact[1], rel=0.01)
    all_of = [
        torch.cat([g.flatten() for g in found[2].values()])
        for found in (half, exact)
    ]
    assert F.cosine_similarity(*all_of, dim=0) > 0.99
    for gradient in half[2].values():
        assert gradient.dtype == torch.float32


def of_lengths(*lengths: int) -> Sentences:
    return Sentences.of([np.full(n, 7) for n in lengths])


FORMS = {
    "full": ((5, 5), (6, 6)),
    "a source is padded": ((5, 3), (6, 6)),
    "a target is padded": ((5, 5), (2, 6)),
    "both are": ((9, 3, 2, 7), (6, 3, 1, 8)),
    "one pair": ((7,), (9,)),
    "long ones": ((50, 60, 2), (61, 3, 44)),
    "short ones": ((1, 1, 1), (1, 1, 1)),
}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_compiled_layer_stays_compiled(
    device: str, precision: Any
) -> None:
    """Every form of a batch, in training and in validation, runs one
    graph per layer: nothing falls back to what is not compiled.
    """
    backend = CountingBackend()
    torch._dynamo.reset()
    model = model_of(device, dropout=0.1, attention_dropout=0.1)
    compile_layers(model, backend)
    for training in [True, False] * 2:
        model.train(training)
        for name, (src, tgt) in FORMS.items():
            corpus = Corpus(of_lengths(*src), of_lengths(*tgt))
            batch = corpus.batch(range(len(src))).to(device)
            backend.ran = 0
            with torch.set_grad_enabled(training):
                packed_loss(model, batch, RunConfig(precision=precision))
            assert backend.ran == 4, (name, training)  # 2 + 2 layers


def test_compiled_layers_learn_the_same(device: str) -> None:
    config = model_of(device).config
    try:
        wrong = wrong_gradients(config, "float32", device)
    except Exception as error:
        pytest.skip(str(error))
    assert wrong == []


def unlike(
    ours: dict[str, Tensor], theirs: dict[str, Tensor], **near: float
) -> dict[str, float]:
    """All parameters whose gradients differ, and by how much of theirs."""
    nothing = torch.zeros(1)
    return {
        name: float((ours.get(name, nothing) - g).norm() / g.norm())
        for name, g in theirs.items()
        if not torch.allclose(ours.get(name, nothing), g, **near)
    }


def test_every_parameter_that_differs_is_named() -> None:
    some = {"a": torch.ones(2), "b": torch.ones(3), "c": torch.ones(4)}
    other = {"a": torch.ones(2), "b": 2 * torch.ones(3)}  # c got none
    found = unlike(other, some, rtol=1e-2, atol=1e-4)
    assert found == {"b": pytest.approx(1.0), "c": pytest.approx(1.0)}


def test_fused_adam_takes_the_steps_of_the_cpu(device: str) -> None:
    cpu = torch.nn.Parameter(torch.linspace(-1, 1, 1000).double())
    here = torch.nn.Parameter(cpu.detach().clone().to(device))
    pair = (cpu, make_optimizer([cpu])), (here, make_optimizer([here]))
    if device == "cuda":
        assert pair[1][1].defaults["fused"]
    draw = torch.Generator().manual_seed(0)
    for step in range(1, 30):
        gradient = torch.randn(1000, generator=draw).double()
        for parameter, optimizer in pair:
            parameter.grad = gradient.to(parameter.device)
            set_learning_rate(optimizer, 0.01 / step)
            optimizer.step()
    torch.testing.assert_close(here.cpu(), cpu, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_copy_task_is_learned(device: str, precision: Any) -> None:
    long = device == "cuda"
    model = model_of(device, src_vocab=20, tgt_vocab=20)
    config = RunConfig(
        batch_tokens=1000 if long else 300, max_steps=400 if long else 150,
        warmup=100, rate=0.5, precision=precision,
    )  # fmt: skip
    corpus = copy_corpus(5000, vocab=20)
    losses = [p.loss for p in Trainer(model, corpus, config).steps()]
    assert all(map(math.isfinite, losses))
    unseen = copy_corpus(300, vocab=20, seed=1)
    tokens, _ = greedy_accuracy(model, unseen)
    assert tokens > (0.95 if long else 0.3)
    assert validate(model, unseen, config)["nll"] < (0.3 if long else 2.2)


def test_a_run_taken_up_again_goes_on(device: str) -> None:
    config = RunConfig(batch_tokens=300, max_steps=8, warmup=4)
    corpus = copy_corpus(200, vocab=20)
    whole = model_of(device, src_vocab=20, tgt_vocab=20, dropout=0.1)
    half = copy.deepcopy(whole)
    list(Trainer(whole, corpus, config).steps())
    first = Trainer(half, corpus, config)
    for progress in first.steps():
        if progress.step == 4:
            break
    later = model_of(device, src_vocab=20, tgt_vocab=20, dropout=0.1)
    second = Trainer(later, corpus, config)
    second.load(first.weights(), first.moments(), first.state())
    list(second.steps())
    for one, other in zip(
        whole.parameters(), later.parameters(), strict=True
    ):
        # the order of additions is not fixed on a GPU
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.fixture
def group_of_one(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A group with the carrier that several processes have on a device:
    NCCL on a GPU.
    """
    carrier = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    store = dist.HashStore()
    dist.init_process_group(carrier, store=store, rank=0, world_size=1)
    try:
        make = lambda minutes: dist.new_group()  # noqa: E731
        monkeypatch.setattr(trainer, "step_group", make)
        yield device
        gc.collect()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("shard", [False, True], ids=["whole", "sharded"])
def test_a_group_of_one_learns_what_none_does(
    group_of_one: str,
    precision: Any,
    shard: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if shard and torch.__version__ < "2.9":  # TorchVersion
        pytest.skip("weights are sharded from torch 2.9 on")
    config = RunConfig(
        batch_tokens=300, micro_tokens=100, max_steps=6, warmup=4,
        precision=precision,
    )  # fmt: skip
    corpus, kinds, losses = copy_corpus(200, vocab=20), [], []
    for several in (True, False):
        model = model_of(group_of_one, src_vocab=20, tgt_vocab=20)
        if not several:
            monkeypatch.setattr(trainer, "step_group", lambda minutes: None)
        one = Trainer(model, corpus, config, shard=shard and several)
        kinds.append(type(one.loss).__name__)
        losses.append([p.loss for p in one.steps()])
    assert kinds[0] != kinds[1] == "_Loss"
    near = 1e-4 if precision == "float32" else 2e-2
    assert losses[0] == pytest.approx(losses[1], rel=near)


# --- search ---------------------------------------------------------------


@pytest.fixture(scope="module")
def sentences() -> list[list[int]]:
    corpus = copy_corpus(24, vocab=40, length=9, seed=3)
    return [corpus.src[i].tolist() for i in range(24)]


@pytest.mark.parametrize("beam", [1, 4])
def test_search_finds_what_it_finds_on_a_cpu(
    device: str, beam: int, sentences: list[list[int]]
) -> None:
    search = SearchConfig(beam=beam, extra=8, nbest=min(beam, 2))
    found = [
        beam_search(model_of(where, torch.float64), sentences, search)
        for where in (device, "cpu")
    ]
    for here, cpu in zip(*found, strict=True):
        assert [h.ids for h in here] == [h.ids for h in cpu]
        assert [h.score for h in here] == pytest.approx(
            [h.score for h in cpu], rel=1e-9
        )


def test_fast_search_is_plain_search(
    device: str, sentences: list[list[int]]
) -> None:
    model = model_of(device, torch.float64)
    search = SearchConfig(beam=3, extra=5)
    fast = search_in_order(model, sentences[:8], search, batch_tokens=40)
    for source, found in zip(sentences, fast):
        (best,) = plain_beam_search(model, source, search)
        assert found[0].ids == best.ids


@pytest.mark.gpu
@pytest.mark.skipif(NO_GPU, reason="needs a CUDA device")
def test_the_second_batch_of_a_recorded_search_is_right_too(
    sentences: list[list[int]],
) -> None:
    search = SearchConfig(beam=3, extra=20)
    gpu, cpu = (model_of(d, torch.float64) for d in ("cuda", "cpu"))
    kept: dict[Any, Any] = {}
    for some in (sentences, sentences[::-1]):
        found = beam_search(gpu, some, search, searches=kept)
        for here, there in zip(found, beam_search(cpu, some, search)):
            assert [h.ids for h in here] == [h.ids for h in there]
    (recorded,) = kept.values()
    replays = [replay for replay in recorded.replays.values() if replay]
    graphs = [getattr(replay, "__self__", None) for replay in replays]
    assert graphs and all(type(g) is torch.cuda.CUDAGraph for g in graphs)


def test_search_in_bfloat16_runs_and_ends(
    device: str, sentences: list[list[int]]
) -> None:
    model = model_of(device, torch.bfloat16)
    search = SearchConfig(beam=4, extra=5)
    found = search_in_order(model, sentences, search)
    assert len(found) == len(sentences)
    for source, (best,) in zip(sentences, found, strict=True):
        assert len(best.ids) < len(source) + 5
        assert math.isfinite(best.score)
