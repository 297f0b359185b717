"""Which precision and which device: engine.machine and engine.runs."""

from __future__ import annotations

import json
import math
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from annotated.engine import machine, speed, start
from annotated.engine.errors import TrainingError, UsageError
from annotated.engine.packing import NoCacheError, PackedTransformer
from annotated.engine.parts import build
from annotated.engine.recipes import RECIPES
from annotated.engine.runner import train_recipe
from annotated.engine.runs import read_metrics, read_recipe
from annotated.engine.search import _SlotCache, converted
from annotated.engine.trainer import RunConfig, Trainer, _LossScale
from annotated.model import Transformer, TransformerConfig
from annotated.tokens import PAD
from annotated.training import Progress, copy_corpus
from tests.helpers import SHAPE, TINY, Killed, at_step

BF16 = "flags\t\t: fpu fma avx512_bf16\nmodel name\t: One\ncpu MHz\t\t: 1\n"


@pytest.fixture
def auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A processor with bfloat16 that decides by itself; the folder in which
    it keeps what it measures.
    """
    folder = tmp_path / "measured"
    monkeypatch.delenv("ANNOTATED_PRECISION", raising=False)
    monkeypatch.setenv("ANNOTATED_MEASURED", str(folder))
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(BF16, "utf-8")
    return folder


def measures(monkeypatch: pytest.MonkeyPatch, *ratios: float) -> list[int]:
    """The speeds that the next measurements find; their sizes."""
    sizes: list[int] = []
    coming = iter(ratios)
    monkeypatch.setattr(
        machine,
        "_bfloat16_speedup",
        lambda n: sizes.append(n) or next(coming),
    )
    return sizes


@pytest.mark.parametrize(
    ("ratios", "precision"),
    [
        ((2.0, 2.0), "bfloat16"),
        ((0.3, 2.0), "bfloat16"),  # a small product mostly prepares itself
        ((1.1, 1.1), "float32"),
        ((0.02,), "float32"),  # emulated: no large product is tried
    ],
)
def test_a_machine_that_multiplies_bfloat16_faster_trains_in_it(
    auto: Path,
    monkeypatch: pytest.MonkeyPatch,
    ratios: tuple[float, ...],
    precision: str,
) -> None:
    sizes = measures(monkeypatch, *ratios)
    found, reason = machine.pick_precision("cpu")
    assert found == precision and len(sizes) == len(ratios)
    assert not any(
        c.isdigit()
        for c in reason.replace("float32", "").replace("bfloat16", "")
    )


def test_a_machine_measures_once_whatever_it_would_find_later(
    auto: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measures(monkeypatch, 2.0, 2.0, 0.5, 0.5)
    threads = torch.get_num_threads()
    first = machine.pick_precision("cpu")
    torch.set_num_threads(threads + 1)
    cpuinfo = machine._CPUINFO
    cpuinfo.write_text(BF16.replace("MHz\t\t: 1", "MHz\t\t: 9"), "utf-8")
    try:
        assert machine.pick_precision("cpu") == first
    finally:
        torch.set_num_threads(threads)
    assert first[0] == "bfloat16" and len(list(auto.iterdir())) == 1
    # another processor in the same home decides for itself
    cpuinfo.write_text(BF16.replace("One", "Two"), "utf-8")
    assert machine.pick_precision("cpu")[0] == "float32"
    assert len(list(auto.iterdir())) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"value": null}'])
def test_what_is_damaged_or_deleted_is_measured_again(
    auto: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    measures(monkeypatch, 2.0, 2.0, 0.5, 0.5, 2.0, 2.0)
    machine.pick_precision("cpu")
    (file,) = auto.iterdir()
    file.write_text(text, "utf-8")
    assert machine.pick_precision("cpu")[0] == "float32"
    file.unlink()
    assert machine.pick_precision("cpu")[0] == "bfloat16"
    assert [p.name for p in auto.iterdir()] == [file.name]


@pytest.mark.parametrize("links", [True, False])
def test_of_processes_that_measure_at_once_the_first_is_right(
    auto: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def slower() -> tuple[float, bool]:
        assert machine.cached("x", {}, lambda: (2.0, True)) == 2.0
        return 1.0, True

    assert machine.cached("x", {}, slower) == 2.0
    assert machine.cached("x", {}, lambda: (3.0, True)) == 2.0
    if not links:

        def refuse(*_: object) -> None:
            raise OSError("no links here")

        monkeypatch.setattr(os, "link", refuse)
        assert machine.cached("y", {}, lambda: (4.0, True)) == 4.0
        assert machine.cached("y", {}, lambda: (5.0, True)) == 4.0
    assert not [p for p in auto.iterdir() if p.suffix != ".json"]


def test_where_nothing_can_be_kept_each_process_decides_alike(
    auto: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auto.write_text("a file, not a folder", "utf-8")
    # as found on a busy machine: a third off, either way
    busy = [2.0 / 1.33, 2.0 * 1.33]
    measures(monkeypatch, *[r for ratio in busy for r in (ratio, ratio)])
    assert {machine.pick_precision("cpu")[0] for _ in busy} == {"bfloat16"}
    busy = [0.5 / 1.33, 0.5 * 1.33, 1.0 * 1.33]
    measures(monkeypatch, *[r for ratio in busy for r in (ratio, ratio)])
    assert {machine.pick_precision("cpu")[0] for _ in busy} == {"float32"}
    assert auto.is_file()


def test_a_processor_without_the_instructions_is_not_measured(
    auto: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measures(monkeypatch)  # would end in an error
    for line in ("flags : avx2 fma", "Features : asimd fphp"):
        machine._CPUINFO.write_text(f"{line}\n", "utf-8")
        assert machine.pick_precision("cpu") == (
            "float32",
            "this processor has no bfloat16 instructions",
        )
    assert not auto.exists()


def test_a_system_that_shows_no_flags_is_measured(
    auto: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine._CPUINFO.unlink()
    sizes = measures(monkeypatch, 2.0, 2.0)
    assert machine.pick_precision("cpu")[0] == "bfloat16" and sizes


@pytest.mark.parametrize(
    ("line", "told"),
    [("flags : avx2 fma", True), (BF16, False), ("model name : x", False)],
)
def test_bfloat16_is_called_slow_where_it_is_known_to_be(
    auto: Path, capsys: pytest.CaptureFixture[str], line: str, told: bool
) -> None:
    machine._CPUINFO.write_text(line, "utf-8")
    start.with_precision(TINY.changed(precision="bfloat16"), "cpu")
    assert ("bfloat16 is emulated" in capsys.readouterr().err) == told


@pytest.mark.parametrize("own", ["float32", "bfloat16", "float16"])
def test_the_environment_overrides_the_machine(
    auto: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    measures(monkeypatch)
    monkeypatch.setenv("ANNOTATED_PRECISION", own)
    found, reason = machine.pick_precision("cpu")
    assert found == own and "ANNOTATED_PRECISION" in reason
    monkeypatch.setenv("ANNOTATED_PRECISION", "bf16")
    with pytest.raises(UsageError, match="ANNOTATED_PRECISION.*'bf16'"):
        machine.pick_precision("cpu")


def test_a_gpu_says_what_it_can(
    auto: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = machine.torch.cuda
    monkeypatch.setattr(cuda, "get_device_name", lambda device: "T4")
    known = {
        (6, 1): "float32",
        (7, 0): "float16",
        (7, 5): "float16",
        (8, 0): "bfloat16",
        (9, 0): "bfloat16",
    }
    for version, precision in known.items():
        monkeypatch.setattr(
            cuda, "get_device_capability", lambda device, v=version: v
        )
        found, reason = machine.pick_precision("cuda")
        assert found == precision
        assert "T4" in reason


@pytest.mark.parametrize("faster", ["float32", "bfloat16"])
def test_what_the_machine_decides_is_said_and_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    faster: str,
) -> None:
    auto = TINY.changed(precision="auto")
    monkeypatch.setattr(
        start, "pick_precision", lambda device: (faster, "so it is")
    )
    summary = train_recipe(auto, tmp_path / "run", device="cpu")
    line = f"precision {faster} on cpu: so it is; torch's attention"
    if faster == "bfloat16":
        line = line.replace("torch's attention", "attention in products")
    assert capsys.readouterr().err.count(line) == 1
    assert summary["precision"] == faster
    kept = read_recipe(tmp_path / "run").training.precision
    assert kept == faster
    # another machine would decide otherwise, and is not asked
    other = {"float32": "bfloat16", "bfloat16": "float32"}[faster]
    monkeypatch.setattr(
        start, "pick_precision", lambda device: (other, "of another")
    )
    longer = auto.changed(max_steps=22)
    summary = train_recipe(
        longer, tmp_path / "run", resume=True, device="cpu"
    )
    assert summary["precision"] == faster
    assert "of another" not in capsys.readouterr().err


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_killed_run_goes_on_bit_for_bit_in_16_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    # so that the scale falls before step 8 and rises after it
    monkeypatch.setattr(_LossScale, "patience", 10)
    monkeypatch.setattr(
        _LossScale.__init__, "__defaults__", (2.0**30, 0, 0)
    )
    half = TINY.changed(precision=precision, dropout=0.1, max_steps=12)
    train_recipe(half, tmp_path / "whole", device="cpu")

    def killed() -> None:
        raise Killed

    with monkeypatch.context() as patch:
        at_step(patch, 8, killed)
        with pytest.raises(Killed):
            train_recipe(half, tmp_path / "cut", device="cpu")
    train_recipe(half, tmp_path / "cut", resume=True, device="cpu")
    whole, cut = (
        load_file(tmp_path / name / "model.safetensors")
        for name in ("whole", "cut")
    )
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    notes = [read_metrics(tmp_path / name) for name in ("whole", "cut")]
    assert [e.get("scale") for e in notes[0]] == [
        e.get("scale") for e in notes[1]
    ]
    full = half.changed(precision="float32")
    train_recipe(full, tmp_path / "full", device="cpu")
    other = load_file(tmp_path / "full" / "model.safetensors")
    assert not all(torch.equal(whole[name], other[name]) for name in whole)


def test_apples_gpu_comes_after_cudas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine.torch, "empty", lambda *_, **__: None)
    apple, cuda = machine.torch.backends.mps, machine.torch.cuda
    found = []
    for there in ((False, False), (True, False), (True, True)):
        monkeypatch.setattr(apple, "is_available", lambda t=there: t[0])
        monkeypatch.setattr(cuda, "is_available", lambda t=there: t[1])
        found.append(machine.pick_device())
    assert found == ["cpu", "mps", "cuda"]


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Mac, as far as the choice of a device goes."""
    monkeypatch.setattr(
        machine, "pick_device", lambda name=None: name or "mps"
    )
    monkeypatch.setenv("ANNOTATED_MEASURED", str(tmp_path / "measured"))


@pytest.mark.usefixtures("apple")
@pytest.mark.parametrize(("cpu", "chosen"), [(1.0, "cpu"), (3.0, "mps")])
def test_apples_gpu_is_taken_where_it_is_quicker(
    cpu: float, chosen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def measure(device: str) -> float:
        asked.append(device)
        return {"cpu": cpu, "mps": 2.0}[device]

    for _ in range(2):  # the second time it is known
        found = machine.quicker_device(None, "search", {"a": 1}, measure)
        assert found == chosen
    assert sorted(asked) == ["cpu", "mps"]
    said = capsys.readouterr().err.splitlines()[0]
    assert said.startswith(
        f"search on {chosen}: Apple's GPU is {cpu / 2:.1f}"
    )
    for name in ("mps", "cpu", "cuda"):  # somebody named it
        assert machine.quicker_device(name, "search", {}, measure) == name
    assert len(asked) == 2


@pytest.mark.usefixtures("apple")
def test_training_and_search_are_timed_at_what_is_to_be_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    about: list[str] = []

    def one(name: Any, work: str, facts: Any, measure: Any) -> str:
        json.dumps(facts)  # it is a key of what is kept
        assert 0 < measure("cpu") < 60
        about.append(work)
        return "cpu"

    monkeypatch.setattr(speed, "quicker_device", one)
    recipe = RECIPES["copy"].changed(batch_tokens=200)
    before = torch.random.get_rng_state()
    assert speed.training_device(recipe, None) == "cpu"
    assert torch.equal(torch.random.get_rng_state(), before)
    few = recipe.changed(positions="learned", max_len=16)
    for one_of in (recipe, few):
        model = build(one_of.config())
        assert speed.search_device(model, recipe.search, None) == "cpu"
    assert about == ["training", "search", "search"]

    def uncached(*_: Any) -> str:
        raise NoCacheError("no cache computes this")

    monkeypatch.setattr(speed, "quicker_device", uncached)
    assert speed.search_device(model, recipe.search, "cpu") == "cpu"


# --- float16 --------------------------------------------------------------


def steps_of(precision: str, scale: float = 2.0**16, **changes: Any):
    """A trainer after twelve steps, and these."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(**SHAPE, dropout=0.0))
    config = {"batch_tokens": 60, "warmup": 10, "max_steps": 12} | changes
    corpus = copy_corpus(100, vocab=12, length=5)
    training = RunConfig(precision=precision, **config)  # type: ignore
    trainer = Trainer(model, corpus, training)
    if trainer.scaling is not None:
        trainer.scaling.scale = scale
    return trainer, list(trainer.steps())


def gap(one: list[Progress], other: list[Progress], field: str) -> float:
    pairs = zip(one, other, strict=True)
    return max(
        abs(getattr(a, field) / getattr(b, field) - 1) for a, b in pairs
    )


def test_float16_learns_what_float32_does() -> None:
    (_, full), (trainer, half) = map(steps_of, ("float32", "float16"))
    assert trainer.scaling is not None and not trainer.scaling.overflows
    assert gap(half, full, "loss") < 0.02
    # the norm is that of the gradient, not of the scaled one
    assert gap(half, full, "gradient_norm") < 0.1
    assert gap(half, full, "loss") > 0  # but the numbers are others
    kinds = {p.dtype for p in trainer.model.parameters()}
    assert kinds == {torch.float32}


def test_gradients_are_scaled_back_before_they_are_clipped() -> None:
    (_, full), (_, half) = (
        steps_of(precision, clip=0.01)
        for precision in ("float32", "float16")
    )
    assert min(p.gradient_norm for p in half) > 0.1
    assert gap(half, full, "gradient_norm") < 0.1
    assert gap(half, full, "loss") < 0.02


def test_a_step_that_overflows_is_taken_again_with_half_the_scale() -> None:
    _, calm = steps_of("float16")
    trainer, wild = steps_of("float16", scale=2.0**40)
    assert trainer.scaling is not None
    fell = trainer.scaling.overflows
    assert fell > 5
    assert trainer.scaling.scale == 2.0 ** (40 - fell)
    # no step and no batch is lost
    assert [p.tokens for p in wild] == [p.tokens for p in calm]
    assert gap(wild, calm, "loss") < 0.02


def test_without_a_scale_small_gradients_vanish() -> None:
    """How far a gradient is from that of float32, by the scale."""

    def gradient(precision: str, scale: float = 1.0) -> torch.Tensor:
        trainer, _ = steps_of(precision, scale, max_steps=1)
        layer = trainer.model.encoder.layers[0].attention.w_q
        assert layer.weight.grad is not None
        return layer.weight.grad

    exact = gradient("float32")
    far, near = (
        ((gradient("float16", scale) - exact).norm() / exact.norm()).item()
        for scale in (2.0**-13, 2.0**16)
    )
    assert near < 0.02
    assert far > 10 * near


def test_after_calm_steps_the_scale_doubles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_LossScale, "patience", 5)
    trainer, _ = steps_of("float16", scale=4.0)
    assert trainer.scaling == _LossScale(16.0, 2, 0)


def test_what_no_scale_mends_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(trainer: Trainer, work: Any, scale: float) -> torch.Tensor:
        for p in trainer.model.parameters():
            p.grad = torch.full_like(p, math.inf)
        return torch.ones(2)

    monkeypatch.setattr(Trainer, "attempt", broken)
    with pytest.raises(TrainingError, match="step 1 has .* norm"):
        steps_of("float16")


def test_a_run_in_float16_counts_and_says_that_it_is_slow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = TINY.changed(precision="float16")
    summary = train_recipe(half, tmp_path / "run", device="cpu")
    said = capsys.readouterr().err
    assert said.count("float16 is emulated on this processor, slowly") == 1
    assert summary["overflows"] == 0
    lines = [e for e in read_metrics(tmp_path / "run") if "loss" in e]
    assert {e["scale"] for e in lines} == {2.0**16}
    assert [e["calm"] for e in lines] == [1, 10, 20]


def test_attention_has_no_16_bit_kernel_on_a_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, seen = F.scaled_dot_product_attention, []

    def watched(q: Tensor, *args: Any, **options: Any) -> Tensor:
        seen.append(q.dtype)
        return kernel(q, *args, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    # where weights are dropped, the kernel has to compute them
    shape = SHAPE | {"attention_dropout": 0.1}
    model = PackedTransformer(TransformerConfig(**shape))
    src = torch.tensor([[5, 6, 7], [8, 9, PAD]])
    for precise, run in (
        (torch.float32, torch.autocast("cpu", torch.bfloat16)),
        (torch.float64, nullcontext()),
    ):
        model, seen[:] = model.to(precise), []
        with run:
            model(src, src)
        assert set(seen) == {precise}


def test_a_search_in_bfloat16_rounds_in_linear_maps_only() -> None:
    model = PackedTransformer(TransformerConfig(**SHAPE)).eval()
    half = converted(model, torch.bfloat16)
    rounded = {
        name
        for name, p in half.named_parameters()
        if p.dtype != torch.float32
    }
    linear = {
        f"{name}.{kind}"
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.Linear)
        for kind in ("weight", "bias")
    }
    assert rounded == linear
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    src = torch.tensor([[5, 6, 7], [8, 9, 10]])
    one = torch.ones(2, 1, 1, dtype=torch.bool)
    with torch.no_grad():
        exact, rough = (
            _SlotCache(m, src, slots=3).next_logits(src[:, :1], one)
            for m in (model, half)
        )
    assert rough.dtype == torch.float32 and not torch.equal(exact, rough)
    torch.testing.assert_close(exact, rough, rtol=0.05, atol=0.05)
