"""A run that only counts words says so: engine.runner (page E10)."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import signal
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from annotated import training
from annotated.batches import Corpus, Sentences
from annotated.commands.average import Average
from annotated.costs import kept_bytes, state_bytes
from annotated.engine import fit, log, runner, trainer
from annotated.engine.checkpoints import checkpoints
from annotated.engine.errors import RunError, Stopped
from annotated.engine.log import _token_entropy
from annotated.engine.machine import memory_bytes
from annotated.engine.recipes import Recipe
from annotated.engine.runner import _advice, _best_step, train_recipe
from annotated.engine.runs import (
    read_metrics,
    read_recipe,
    validations,
    writing,
)
from annotated.model import Transformer, TransformerConfig
from annotated.schedule import cooldown_factor, learning_rate
from annotated.training import Progress, Trainer
from tests.engine.small import small_trainer
from tests.helpers import SHAPE, TINY, Killed, at_step

# learns within its warm-up of 40 steps and 100 more
HEALTHY = TINY.changed(
    d_model=32, d_ff=64, train_pairs=1000, batch_tokens=300, norm="pre",
    warmup=40, rate=0.5, max_steps=150, save_every=50,
)  # fmt: skip
ABSURD = HEALTHY.changed(norm="post", rate=8.0)
FULL = Path("/dev/full")  # Linux has it


def said(folder: Path) -> list[str]:
    return [e["warning"] for e in read_metrics(folder) if "warning" in e]


# --- the entropy ----------------------------------------------------------


def test_the_entropy_counts_the_ends_too() -> None:
    target = Sentences.of([[4, 5], [4], []])
    by_hand = -sum(n / 6 * math.log(n / 6) for n in (2, 1, 3))
    assert _token_entropy(Corpus(target, target)) == pytest.approx(by_hand)


def test_even_words_cost_the_logarithm_of_their_number() -> None:
    # 15 words and an end, all equally often
    rows = [[4 + i for i in range(15)]] * 8
    target = Sentences.of(rows, dtype=np.uint16)
    found = _token_entropy(Corpus(target, target))
    assert found == pytest.approx(math.log(16))


# --- micro-batches --------------------------------------------------------


def test_micro_batches_are_the_devices_choice_not_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, real = [], runner.Trainer

    def noted(model: Any, corpus: Any, config: Any, shard: bool) -> Any:
        found.append(config.micro_tokens)
        return real(model, corpus, config, shard)

    recipe = TINY.changed(batch_tokens=2000, max_steps=1)
    monkeypatch.setattr(fit, "memory_bytes", lambda device: 0.0)
    monkeypatch.setattr(runner, "Trainer", noted)
    train_recipe(recipe, tmp_path / "run", device="cpu")
    assert found == [500]
    assert read_recipe(tmp_path / "run") == recipe


@pytest.mark.parametrize(
    ("given", "fits", "said"),
    [
        (None, 9e9, 200),  # half of what did not
        (300, 9e9, 150),
        (300, 90.7, 90),  # what the sum says, if that is less
        (None, -3.0, 200),
    ],
)
def test_out_of_memory_is_one_line_with_numbers_that_fit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: int | None,
    fits: float,
    said: int,
) -> None:
    def learn(self: Any, work: Any) -> Any:
        monkeypatch.setattr(runner, "tokens_that_fit", lambda *_: fits)
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried …\n…")

    monkeypatch.setattr(runner.Trainer, "learn", learn)
    recipe = TINY.changed(batch_tokens=400, micro_tokens=given)
    with pytest.raises(RunError) as error:
        train_recipe(recipe, tmp_path / "run", device="cpu")
    line = str(error.value)
    assert line.startswith("out of memory at step 1: ") and "\n" not in line
    assert f"try --micro-tokens {said}, with which the gradient" in line
    assert line.endswith(f"or steps of --batch-tokens {said}")
    assert ("model alone" in line) is (fits < 1)


def test_the_number_that_is_advised_fits() -> None:
    """In two thirds of this machine, beside the model and its state."""
    trainer = small_trainer(batch_tokens=10**12)
    few = int(_advice(trainer).split("--micro-tokens ")[1].split(",")[0])
    config = trainer.model.config
    need = state_bytes(config) + few * kept_bytes(config)
    assert 0.6 < need / memory_bytes("cpu") < 0.67


# --- events for TensorBoard ------------------------------------------------


class Board:
    """What torch.utils.tensorboard.SummaryWriter is asked for."""

    made: list[Board] = []

    def __init__(self, place: str, purge_step: int | None, **more: Any):
        self.place, self.purge_step = place, purge_step
        self.found: list[tuple[str, float, int]] = []
        self.closed = False
        self.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.found.append((name, value, step))

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("there", [True, False])
def test_where_tensorboard_is_installed_it_gets_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setattr(Board, "made", [])
    real = importlib.util.find_spec

    def find_spec(name: str) -> Any:
        found = SimpleNamespace() if there else None
        return found if name == "tensorboard" else real(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.setitem(
        sys.modules,
        "torch.utils.tensorboard",
        SimpleNamespace(SummaryWriter=Board),
    )
    folder, recipe = tmp_path / "run", TINY.changed(save_every=10)

    def stop() -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        at_step(patch, 12, stop)
        train_recipe(recipe, folder, device="cpu")
    train_recipe(recipe, folder, device="cpu", resume=True)
    if not there:
        assert Board.made == []
        return
    first, again = Board.made
    assert first.place == again.place == str(folder / "tensorboard")
    assert (first.purge_step, again.purge_step) == (None, 11)
    assert first.closed and again.closed
    kept = {
        ("loss", entry["loss"], entry["step"])
        for entry in read_metrics(folder)
        if "loss" in entry
    }
    assert kept and kept <= {*first.found, *again.found}
    assert any(name == "valid/nll" for name, *_ in again.found)


# --- a line while it runs -------------------------------------------------


def test_a_run_that_collapses_says_so_once_while_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    summary = train_recipe(ABSURD, folder, device="cpu")
    (line,) = said(folder)
    err = capsys.readouterr().err
    assert err.count(line) == 1
    assert err.index(line) < err.index("step 150: checkpoint")
    assert line.startswith("step 140: ")
    assert "since step 1;" in line
    assert "--rate below 8 or --warmup above 40" in line
    assert "start a new run with --norm pre" in line
    assert summary["warnings"] == [line]
    entropy = float(line.split("gives ")[1].split(". ")[0])
    assert 2 < entropy < math.log(20)
    kept = json.loads((folder / "summary.json").read_text("utf-8"))
    assert kept["warnings"] == [line]


def test_a_run_that_learns_says_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = train_recipe(HEALTHY, tmp_path / "run", device="cpu")
    assert "warnings" not in summary
    assert said(tmp_path / "run") == []
    assert "guessing" not in capsys.readouterr().err


def doubt_of(recipe: Recipe, step: int = 0, valid: float = math.inf):
    corpus = Corpus(*[Sentences.of([[4 + i for i in range(15)]])] * 2)
    model = Transformer(TransformerConfig(**SHAPE, norm=recipe.model.norm))
    trainer = Trainer(model, corpus, recipe.training)
    trainer.step = step
    return log._DivergenceCheck(trainer, [valid])  # type: ignore[arg-type]


def progress(step: int, nll: float) -> Progress:
    return Progress(step, 0, nll, nll, 1.0, 1.0, step, float(step))


def test_it_waits_for_the_warm_up_and_a_hundred_steps() -> None:
    doubt = doubt_of(HEALTHY)
    found = [doubt.training(progress(n, 2.7)) for n in range(1, 300)]
    assert [i + 1 for i, line in enumerate(found) if line] == [140]
    assert "norm" not in str(found[139])  # is pre already


def test_it_says_since_when() -> None:
    doubt = doubt_of(HEALTHY)
    lines = []
    for step in range(1, 400):
        nll = 1.0 if step < 200 else 2.7
        lines.append(doubt.training(progress(step, nll)))
    (line,) = filter(None, lines)
    # where the mean of the last hundred came above 0.9 ln 16
    assert line.startswith("step 287: ") and "since step 287;" in line


def test_what_only_helps_in_training_is_seen_in_validation() -> None:
    doubt = doubt_of(HEALTHY)
    assert doubt.validation(100, 2.7) is None
    line = doubt.validation(140, 2.75)
    assert line is not None
    assert "2.70 nats per token in the best validation" in line
    assert doubt.validation(150, 2.75) is None
    # a run that once was good has learned too much, not too little
    assert doubt_of(HEALTHY, 500, valid=1.0).validation(700, 2.7) is None
    assert doubt_of(HEALTHY, 500, valid=2.7).validation(700, 2.7)


def test_a_validation_that_still_falls_is_no_reason_for_doubt() -> None:
    """Text of another kind may be dear, and yet be learned."""
    doubt = doubt_of(HEALTHY)
    assert not any(
        doubt.validation(150 + i, 3.0 - i / 10) for i in range(4)
    )
    assert doubt.validation(200, 2.69)


# --- minutes that end a run ----------------------------------------------

PLAN = TINY.changed(max_steps=100, cooldown=40, save_every=10, keep=9)


def ticking(
    monkeypatch: pytest.MonkeyPatch, slower: int = 10**9, by: float = 4.0
) -> None:
    """A step takes a second; from step slower on, by times as long."""
    now, taken = [0.0], [0]

    def clock() -> float:
        # four readings a step, the second and third around its work
        taken[0] += 1
        if taken[0] % 4 == 3:
            now[0] += by if taken[0] > 4 * slower else 1.0
        return now[0]

    fake = SimpleNamespace(perf_counter=clock)
    monkeypatch.setattr(training, "time", fake)
    monkeypatch.setattr(trainer, "time", fake)


def rates(folder: Path) -> dict[int, float]:
    return {
        e["step"]: e["rate"] for e in read_metrics(folder) if "rate" in e
    }


@pytest.mark.parametrize(
    ("minutes", "last", "cooldown"),
    [
        (10.0, 100, 40),  # more than enough: the plan
        (90.0, 90, 40),  # the plan's cool-down, in time
        (50.0, 50, 25),  # half of the run, where that is less
    ],
)
def test_the_cool_down_ends_with_the_minutes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    minutes: float,
    last: int,
    cooldown: int,
) -> None:
    ticking(monkeypatch)
    short = PLAN.changed(
        max_minutes=minutes if minutes == 10 else minutes / 60
    )
    summary = train_recipe(short, tmp_path / "run", device="cpu")
    steps = summary["steps"]
    assert last - 2 <= steps <= last
    err = capsys.readouterr().err
    if steps == 100:
        assert "not_run" not in summary and "not run" not in err
    else:
        assert summary["not_run"] == 100 - steps
        line = f"allowed {steps} of the plan's 100 steps: {100 - steps} were not run"
        assert err.splitlines()[-1].endswith(line)
        assert f"allow {steps} steps: cooling down" in err
    # the schedule of chapter 12, with an earlier end
    found = load_state(tmp_path / "run")["ending"]["now"]
    assert found[0] == steps and abs(found[1] - cooldown) <= 2
    for step, rate in rates(tmp_path / "run").items():
        full = learning_rate(
            step, 16, short.training.warmup, short.training.rate
        )
        factor = cooldown_factor(step, steps, found[1])
        assert rate == pytest.approx(full * factor)


def load_state(folder: Path) -> dict[str, Any]:
    place = checkpoints(folder / "checkpoints")[-1]
    return json.loads((place / "state.json").read_text("utf-8"))


def test_a_machine_that_becomes_slower_cools_down_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticking(monkeypatch, slower=150, by=1.5)
    short = PLAN.changed(max_steps=300, cooldown=120, max_minutes=225 / 60)
    train_recipe(short, tmp_path / "run", device="cpu")
    state = load_state(tmp_path / "run")
    assert 180 < state["step"] == state["ending"]["now"][0] < 205
    # the line becomes steeper, and does not jump
    found = [
        rate
        / learning_rate(
            step, 16, short.training.warmup, short.training.rate
        )
        for step, rate in rates(tmp_path / "run").items()
        if step >= 130
    ]
    drops = [a - b for a, b in zip(found, found[1:], strict=False)]
    assert all(0.05 < drop < 0.25 for drop in drops)
    assert found[-1] < 0.4


def test_minutes_that_are_over_in_the_cool_down_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ticking(monkeypatch, slower=60, by=30.0)  # no time to react
    short = PLAN.changed(max_minutes=75 / 60)
    train_recipe(short, tmp_path / "run", device="cpu")
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.search(
        r"were not run, and the last \d+ of the cool-down", line
    )


def test_a_resumed_run_ends_where_it_was_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed() -> None:
        raise Killed

    short = PLAN.changed(max_minutes=75 / 60, dropout=0.1)
    with monkeypatch.context() as patch:
        ticking(patch)
        train_recipe(short, tmp_path / "whole", device="cpu")
    with monkeypatch.context() as patch:
        ticking(patch)
        at_step(patch, 53, killed)
        with pytest.raises(Killed):
            train_recipe(short, tmp_path / "cut", device="cpu")
    decided = load_state(tmp_path / "cut")["ending"]
    assert (
        decided["now"][0] < 100
        and load_state(tmp_path / "cut")["step"] == 50
    )
    with monkeypatch.context() as patch:
        ticking(patch)
        summary = train_recipe(
            short, tmp_path / "cut", resume=True, device="cpu"
        )
    assert summary["steps"] == decided["now"][0]
    whole, cut = (
        load_file(tmp_path / name / "model.safetensors")
        for name in ("whole", "cut")
    )
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    # with other limits the plan is made again
    with monkeypatch.context() as patch:
        ticking(patch)
        longer = short.changed(max_minutes=10.0)
        summary = train_recipe(
            longer, tmp_path / "cut", resume=True, device="cpu"
        )
    assert summary["steps"] == 100 and "not_run" not in summary


# --- and it can be changed ------------------------------------------------


def test_a_collapsed_run_goes_on_with_another_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    train_recipe(ABSURD.changed(max_steps=10), folder, device="cpu")
    capsys.readouterr()
    changed = ABSURD.changed(
        rate=0.5, warmup=50, clip=1.0, dropout=0.2, label_smoothing=0.0,
        max_steps=20,
    )  # fmt: skip
    train_recipe(changed, folder, resume=True, device="cpu")
    err = capsys.readouterr().err
    assert "resuming at step 10" in err
    (line,) = [x for x in err.splitlines() if "resuming with" in x]
    for change in ("rate 0.5", "warmup 50", "clip 1.0", "dropout 0.2"):
        assert change in line
    assert read_recipe(folder) == changed
    rates = {
        e["step"]: e["rate"] for e in read_metrics(folder) if "rate" in e
    }
    assert rates[10] == pytest.approx(8 / 32**0.5 * 10 / 40**1.5)
    assert rates[20] == pytest.approx(0.5 / 32**0.5 * 20 / 50**1.5)


def test_the_norm_cannot_change(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train_recipe(ABSURD.changed(max_steps=5), folder, device="cpu")
    with pytest.raises(RunError, match="norm 'post'.*needs a new run"):
        train_recipe(HEALTHY, folder, resume=True, device="cpu")


# --- the last step, and the best ------------------------------------------

ODD = TINY.changed(max_steps=12, keep=3)  # 12 is no multiple of 5


def ended_by(
    how: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """The summary of a run of twelve steps that how has ended."""
    if how == "max_minutes":
        ticking(monkeypatch)
        recipe = ODD.changed(max_steps=100, max_minutes=12 / 60)
    elif how == "max_steps, just saved":
        recipe = ODD.changed(save_minutes=1e-9)
    else:
        recipe = ODD
    if how.startswith("a signal"):
        number = int(how.split()[-1])
        with monkeypatch.context() as patch:
            at_step(
                patch, number, lambda: signal.raise_signal(signal.SIGTERM)
            )
            with pytest.raises(Stopped):
                train_recipe(recipe, folder, device="cpu")
        assert number not in validations(folder)  # nobody waits for that
        return train_recipe(recipe, folder, resume=True, device="cpu")
    return train_recipe(recipe, folder, device="cpu")


def test_what_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    scores = {10: math.nan, 20: 3.0, 30: 2.5, 40: math.inf}
    lines = (
        json.dumps({"step": step, "valid": {"nll": nll}})
        for step, nll in scores.items()
    )
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert _best_step(tmp_path) == 30
    resumed = small_trainer()
    resumed.step = 40
    with closing(log.Log(tmp_path, resumed)) as logged:
        assert logged.divergence.best == 2.5
    choice = [({"nll": math.nan}, 4, {}), ({"nll": 9.0}, 1, {})]
    assert min(choice, key=runner._nll)[1] == 1
    assert log._short(6.5234) == "6.52" and len(log._short(1e300)) < 10


@pytest.mark.skipif(not FULL.exists(), reason="no disk that is full")
@pytest.mark.parametrize("ends", ["\n", ""], ids=["written", "closed"])
def test_a_disk_that_is_full_for_the_log_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """When a line is written, or at the end; but at the end nothing takes
    the place of what had gone wrong before. TensorBoard is closed.
    """

    def logged(after: BaseException | None) -> None:
        with log.Log(tmp_path, small_trainer()) as one:
            one.file.close()
            one.file, one.board = FULL.open("a", buffering=1), board
            with writing("metrics.jsonl"):
                one.file.write(f"{{}}{ends}")
            if after is not None:
                raise after

    monkeypatch.setattr(Board, "made", [])
    board = Board("", None)
    said = "metrics.jsonl could not be written .*continue with --resume"
    with pytest.raises(RunError, match=said):
        logged(None)
    assert board.closed
    board = Board("", None)
    if not ends:
        with pytest.raises(Killed):
            logged(Killed())
        assert board.closed


def test_what_is_no_number_is_validated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {"valid": {"nll": math.nan, "perplexity": math.nan}}
    monkeypatch.setattr(runner, "_validated", lambda *_: scores)
    train_recipe(TINY.changed(max_steps=10), tmp_path, device="cpu")
    steps = [e["step"] for e in read_metrics(tmp_path) if "valid" in e]
    assert steps == [5, 10]


@pytest.mark.parametrize(
    "how",
    [
        "max_steps",
        "max_minutes",
        "max_steps, just saved",
        "a signal at step 10",
        "a signal at step 12",
    ],
)
def test_the_last_step_is_validated_and_can_be_the_best(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Summary, log, files and what is averaged agree."""
    run = tmp_path / "run"
    summary = ended_by(how, run, monkeypatch)
    nll = validations(run)
    assert list(nll) == [5, 10, 12]
    assert nll[12] == min(nll.values())  # it is still learning
    assert summary["steps"] == summary["best"] == _best_step(run) == 12
    last = run / "checkpoints" / "00000012" / "model.safetensors"
    assert (run / "best.safetensors").read_bytes() == last.read_bytes()
    out = tmp_path / "best"
    Average(run=run, best=1, out=out).act()
    one, other = load_file(out / "model.safetensors"), load_file(last)
    assert all(torch.equal(one[name], other[name]) for name in other)
    losses = [e["step"] for e in read_metrics(run) if "loss" in e]
    assert losses[-1] == 12


def test_a_run_that_has_ended_is_not_validated_again(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    first = train_recipe(ODD, run, device="cpu")
    log = (run / "metrics.jsonl").read_bytes()
    assert train_recipe(ODD, run, resume=True, device="cpu") == first
    assert (run / "metrics.jsonl").read_bytes() == log
