"""The benchmark of training: everyone does the same work."""

from __future__ import annotations

import functools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from annotated.tokens import PAD, SPECIALS

TINY = [
    "--d-model=16", "--layers=1", "--num-heads=2", "--d-ff=32",
    "--vocab=60", "--sentences=8", "--length=8", "--batches=2",
    "--rounds=20", "--warmup=1", "--rate=0.003", "--threads=1",
    "--precision", "float32", "bfloat16",
]  # fmt: skip


@pytest.fixture(scope="module")
def tiny(speed: ModuleType):
    return speed.Settings(
        d_model=16, layers=2, num_heads=2, d_ff=32, vocab=60,
        sentences=8, length=12, batches=2,
    )  # fmt: skip


def test_lengths_are_those_of_captions(speed: ModuleType) -> None:
    draw = np.random.default_rng(0)
    lengths = speed.draw_lengths(20_000, 24, draw)
    assert lengths.shape == (20_000, 2)
    assert lengths.min() == speed.SHORTEST
    assert lengths.max() == 24
    # of the pairs of Multi30k that have at most 24 tokens on either side
    assert lengths.mean(axis=0) == pytest.approx([15.1, 15.7], abs=0.5)
    assert np.corrcoef(lengths.T)[0, 1] == pytest.approx(0.79, abs=0.05)


def test_batches_come_padded_or_full(speed: ModuleType, tiny) -> None:
    padded, full = (
        speed.draw_batches(tiny, full) for full in (False, True)
    )
    assert len(padded) == len(full) == tiny.batches
    for batch in (*padded, *full):
        for side in (batch.src, batch.tgt, batch.labels):
            assert side.size(0) == tiny.sentences
            assert side.size(1) <= tiny.length
        assert int(batch.src.max()) < tiny.vocab
        words = batch.src[batch.src >= len(SPECIALS)]
        assert len(words) == int((batch.src != PAD).sum()) - tiny.sentences
    assert speed.real_share(full) == 1.0
    assert 0.5 < speed.real_share(padded) < 0.9


def test_everyone_gets_the_same_batches(speed: ModuleType, tiny) -> None:
    one, other = (speed.draw_batches(tiny, full=False) for _ in range(2))
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.src, b.src)
        assert torch.equal(a.labels, b.labels)


def test_the_flops_of_a_step_are_counted_right(
    speed: ModuleType, tiny
) -> None:
    batch = speed.draw_batches(tiny, full=True)[0]
    model = speed.ours(tiny).model
    # with the plain loss and attention: the counter overlooks products into
    # a buffer, and those of a CPU's fused kernel
    plain = sdpa_kernel(SDPBackend.MATH)
    with plain, FlopCounterMode(display=False) as counter:
        logits = model(batch.src, batch.tgt)
        speed.padded_loss(logits, batch, tiny.smoothing).backward()
    assert counter.get_total_flops() == speed.matrix_flops(tiny, [batch])


def test_all_learn_from_the_same_loss(speed: ModuleType, tiny) -> None:
    batch = speed.draw_batches(tiny, full=False)[0]
    contender = speed.ours(replace(tiny, dropout=0.0))
    logits = contender.model(batch.src, batch.tgt)
    padded = speed.padded_loss(logits, batch, tiny.smoothing)
    torch.testing.assert_close(contender.loss(batch), padded)


def test_torchs_model_drops_where_the_paper_does(
    speed: ModuleType, tiny
) -> None:
    model = speed.TorchModel(tiny)
    rates = {
        name: module.p
        for name, module in model.named_modules()
        if isinstance(module, nn.Dropout)
    }
    inside = {name for name, rate in rates.items() if rate == 0.0}
    # between the two linear maps, and nowhere else
    assert {name.split(".")[-1] for name in inside} == {"dropout"}
    assert len(inside) == 2 * tiny.layers
    assert rates["dropout"] == tiny.dropout
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            assert module.dropout == 0.0


def test_torchs_model_sees_no_padding(speed: ModuleType, tiny) -> None:
    batch = speed.draw_batches(tiny, full=False)[0]
    model = speed.TorchModel(replace(tiny, dropout=0.0)).eval()
    lengths = (batch.src != PAD).sum(dim=1)
    row = int(lengths.argmin())
    assert lengths[row] < lengths.max()
    source = batch.src[row : row + 1, : lengths[row]]
    alone = model(source, batch.tgt[row : row + 1])
    together = model(batch.src, batch.tgt)[row : row + 1]
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


def test_a_run_prints_ratios_and_writes_the_ledger(
    speed: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for package in ("transformers", "joeynmt"):
        monkeypatch.setitem(sys.modules, package, None)
    small = functools.partial(speed.peak_flops, size=256)
    monkeypatch.setattr(speed, "peak_flops", small)
    file = tmp_path / "new" / "speed.json"
    assert speed.main([*TINY, f"--json={file}"]) == 0
    said = capsys.readouterr().out
    assert "Marian is left out" in said
    assert "pip install transformers" in said
    assert "JoeyNMT is left out" in said
    assert "as they come" in said and "full: 100%" in said
    entry = json.loads(file.read_text())
    assert set(entry) >= {
        "recipe", "command", "commit", "hardware", "versions", "seed",
        "wall_seconds", "metrics",
    }  # fmt: skip
    for setting in ("as they come", "full"):
        metrics = entry["metrics"][setting]
        ours, torchs = (
            metrics["contenders"][name]
            for name in ("annotated", "torch.nn")
        )
        halves = [
            metrics["contenders"][f"{name}, bfloat16"]
            for name in ("annotated", "torch.nn")
        ]
        best = min(ours, halves[0], key=lambda one: one["step_ms"])
        for one, name in ((ours, "float32"), (halves[0], "bfloat16")):
            used = metrics["flops_per_step"] / one["step_ms"] / 1e6
            share = used / metrics["peak_gflops"][name]
            assert one["peak_share"] == pytest.approx(share, rel=0.01)
        assert ours["ratio"] == halves[0]["ratio"] == 1.0
        assert best["to_best"] == 1.0
        assert metrics["fastest_other_ratio"] == min(
            torchs["to_best"], halves[1]["to_best"]
        )
        # the same weights and batches, with other digits
        assert ours["first_loss"] != halves[0]["first_loss"]
        for one in (ours, torchs, *halves):
            assert one["first_loss"] == pytest.approx(math.log(60), abs=1)
            assert one["last_loss"] < one["first_loss"]
            assert one["step_ms"] > 0
            assert 0 < one["peak_share"] < 1.5


@pytest.mark.slow
def test_marian_takes_part(speed: ModuleType, tiny) -> None:
    pytest.importorskip("transformers")
    batches = speed.draw_batches(tiny, full=False)
    contender = speed.marian(tiny)
    ours = speed.ours(tiny)
    assert contender.parameters == ours.parameters
    first = contender.step(batches[0])
    assert first == pytest.approx(math.log(tiny.vocab), abs=1)
    rates = {
        module.dropout
        for module in contender.model.modules()
        if type(module).__name__ == "MarianAttention"
    }
    assert rates == {0.0}


@pytest.mark.slow
def test_joeynmt_takes_part(speed: ModuleType, tiny) -> None:
    pytest.importorskip("joeynmt")
    batch = speed.draw_batches(tiny, full=False)[0]
    contender = speed.joey(tiny)
    assert contender.parameters == speed.ours(tiny).parameters
    first = contender.step(batch)
    assert first == pytest.approx(math.log(tiny.vocab), abs=1)
    rates = {
        module.dropout.p
        for name, module in contender.model.named_modules()
        if name.endswith("_att")
    }
    assert rates == {0.0}


def test_a_step_that_does_not_learn_is_named(
    speed: ModuleType, tiny
) -> None:
    good = speed.Outcome("good", 1, 1.0, 1.0, 0.5, 1.0, 1.0, 4.1, 3.0)
    bad = replace(good, name="asleep", last_loss=4.1)
    odd = replace(good, name="odd", first_loss=30.0)
    assert list(speed.doubts(tiny, [good])) == []
    assert "asleep does not learn" in next(speed.doubts(tiny, [bad]))
    assert "odd begins with a loss of 30" in next(speed.doubts(tiny, [odd]))


def test_a_run_without_learning_fails(
    speed: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for package in ("transformers", "joeynmt"):
        monkeypatch.setitem(sys.modules, package, None)
    file = tmp_path / "speed.json"
    still = [*TINY, "--rate=0", "--rounds=1", f"--json={file}"]
    assert speed.main(still) == 1
    assert "annotated does not learn" in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ("--rounds=0", "rounds must be at least 1"),
        ("--length=3", "length must be at least 4"),
        ("--threads=0", "threads must be at least 1"),
    ],
)
def test_settings_that_measure_nothing_are_refused(
    speed: ModuleType,
    capsys: pytest.CaptureFixture[str],
    bad: str,
    complaint: str,
) -> None:
    with pytest.raises((ValueError, SystemExit)) as stop:
        speed.main([bad])
    said = f"{stop.value} {capsys.readouterr().err}"
    assert complaint in " ".join(said.replace("│", " ").split())
