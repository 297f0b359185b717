"""Three translators, trained to equal loss: benchmarks/translators.py."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from types import ModuleType

import pytest
import torch

from annotated.book.results import ledger
from tests.helpers import benchmark


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with benchmark("translators") as module:
        yield module


SRC = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])
TGT = torch.tensor([[1, 5, 6], [1, 7, 8]])


@pytest.mark.parametrize(
    "kind", ["recurrent", "convolutional", "attention"]
)
def test_a_translator_sees_its_source_and_no_future(
    script: ModuleType, kind: str
) -> None:
    torch.manual_seed(0)
    model = script.build(kind, 11, 12, 16).eval()
    with torch.no_grad():
        before = model(SRC, TGT)
        assert before.shape == (2, 3, 12)
        later = TGT.clone()
        later[:, 2] = 9
        after = model(SRC, later)
        torch.testing.assert_close(after[:, :2], before[:, :2])
        assert (after[:, 2] - before[:, 2]).abs().max() > 1e-4
        other = SRC.clone()
        other[0, 0], other[1, 0] = 9, 10
        changed = (model(other, TGT) - before).abs().amax(dim=-1)
        assert (changed > 1e-5).all()
        wider = torch.cat([SRC, torch.zeros(2, 3, dtype=torch.long)], dim=1)
        torch.testing.assert_close(model(wider, TGT), before)


def test_they_have_about_as_many_parameters(script: ModuleType) -> None:
    sizes = [
        sum(
            p.numel()
            for p in script.build(kind, 776, 436, 128).parameters()
        )
        for kind in script.KINDS
    ]
    assert max(sizes) < 1.1 * min(sizes), sizes


def test_the_rate_has_its_peak_after_the_warmup(script: ModuleType) -> None:
    settings = script.Settings(warmup=10)
    rates = [script.rate_of(settings, 0.01, step) for step in (5, 10, 40)]
    assert rates == pytest.approx([0.005, 0.01, 0.005])


def test_it_stops_where_the_loss_is_reached_and_writes_the_ledger(
    script: ModuleType, tmp_path: Path
) -> None:
    file = tmp_path / "translators.json"
    words = "--seeds 1 --peaks 0.003 --nll 5.2 0.0 --steps 40 --every 10"
    words += " --warmup 10 --pairs 300 --width 32 --batch-tokens 300"
    assert script.main([*words.split(), "--json", str(file)]) == 0
    runs = json.loads(file.read_text())["metrics"]["runs"]
    assert [run["kind"] for run in runs] == list(script.KINDS)
    for run in runs:
        assert run["steps"] == 40 and run["reached"]["0.0"] is None
        first = next(row for row in run["curve"] if row[2] <= 5.2)
        seconds, step = run["reached"]["5.2"]
        assert [step, seconds] == first[:2]
        assert step < 40 or len(run["curve"]) == 4
    words = words.replace("5.2 0.0", "100")
    assert script.main([*words.split(), "--json", str(file)]) == 0
    runs = json.loads(file.read_text())["metrics"]["runs"]
    assert {run["steps"] for run in runs} == {10}


# --- what chapter 26 says of the runs in the ledger --------------------------


def reached(kind: str, nats: str) -> dict[str, list[float]]:
    """Seconds and steps of each seed, at the peak with the better mean."""
    runs = ledger()["translators"]["metrics"]["runs"]
    by_peak: dict[float, list[tuple[float, float]]] = {}
    for run in runs:
        if run["kind"] == kind:
            there = run["reached"][nats] or (math.inf, math.inf)
            by_peak.setdefault(run["peak"], []).append(tuple(there))
    assert all(len(seeds) == 3 for seeds in by_peak.values())
    found = {}
    for i, what in enumerate(("seconds", "steps")):
        each = [[seed[i] for seed in seeds] for seeds in by_peak.values()]
        found[what] = min(each, key=mean)
    return found


@pytest.mark.parametrize("nats", ["0.5", "0.2", "0.1"])
def test_attention_needs_the_fewest_steps(nats: str) -> None:
    steps = {
        kind: reached(kind, nats)["steps"]
        for kind in ("recurrent", "convolutional", "attention")
    }
    assert max(steps["attention"]) < min(steps["recurrent"])
    assert max(steps["recurrent"]) < min(steps["convolutional"])


def test_its_steps_are_ahead_more_and_more() -> None:
    ratios = [
        mean(reached("recurrent", nats)["steps"])
        / mean(reached("attention", nats)["steps"])
        for nats in ("0.5", "0.2", "0.1")
    ]
    assert ratios == sorted(ratios) and ratios[-1] > 1.6


def test_on_one_core_the_recurrent_one_is_ahead_and_then_level() -> None:
    ratios = [
        mean(reached("recurrent", nats)["seconds"])
        / mean(reached("attention", nats)["seconds"])
        for nats in ("0.5", "0.2", "0.1")
    ]
    assert ratios == sorted(ratios)
    assert ratios[0] < 0.75  # by a third
    assert 0.9 < ratios[-1] < 1.0
    step = [
        mean(reached(kind, "0.1")["seconds"])
        / mean(reached(kind, "0.1")["steps"])
        for kind in ("attention", "recurrent")
    ]
    assert 1.6 < step[0] / step[1] < 2.0  # nearly twice as much


def test_the_convolutional_one_never_gets_to_a_tenth() -> None:
    assert min(reached("convolutional", "0.1")["steps"]) == math.inf
    times = [
        mean(reached(kind, "0.2")["seconds"])
        for kind in ("recurrent", "attention", "convolutional")
    ]
    assert times == sorted(times)
