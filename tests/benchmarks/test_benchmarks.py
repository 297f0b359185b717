"""The benchmarks run, and measure what they say."""

from __future__ import annotations

import ast
import functools
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import tyro
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from annotated.tokens import PAD, SPECIALS
from tests.helpers import ROOT, benchmark

TINY = [
    "--d-model=16", "--layers=1", "--num-heads=2", "--d-ff=32",
    "--vocab=60", "--sentences=8", "--length=8", "--batches=2",
    "--rounds=20", "--warmup=1", "--rate=0.003", "--threads=1",
    "--precision", "float32", "bfloat16",
]  # fmt: skip


@pytest.fixture(scope="module")
def speed() -> Iterator[ModuleType]:
    with benchmark("train_speed") as script:
        yield script


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


# --- a recipe, trained and scored -----------------------------------------


RECIPE = [
    "copy", "--json", "{}/entry.json", "--out", "{}/run", "--split", "valid",
    "--count", "3", "--", "--max-steps", "4", "--save-every", "2",
    "--train-pairs", "50", "--d-model", "16", "--d-ff", "16", "--beam", "1",
]  # fmt: skip


@pytest.fixture(scope="module")
def recipe_entry(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("ledger")
    words = [word.format(place) for word in RECIPE]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("OMP_NUM_THREADS", "1")
        with benchmark("run_recipe") as script:
            tyro.cli(script.main, args=words)
    return json.loads((place / "entry.json").read_text("utf-8"))


def test_a_ledger_file_says_where_it_comes_from(recipe_entry):
    assert recipe_entry.keys() == {
        "recipe", "command", "commit", "date", "hardware", "versions",
        "seed", "wall_seconds", "settings", "metrics", "about", "samples",
    }  # fmt: skip
    assert recipe_entry["command"].startswith(
        "annotated train copy --out RUN --max-steps 4 "
    )
    assert recipe_entry["settings"]["max_steps"] == 4
    assert "vocab" not in recipe_entry["settings"]  # as the recipe has it
    assert recipe_entry["wall_seconds"] > 0


def test_its_metrics_are_the_runs(recipe_entry):
    metrics = recipe_entry["metrics"]
    assert metrics["steps"] == 4
    assert [point[0] for point in metrics["valid_curve"]] == [2, 4]
    assert all(len(point) == 4 for point in metrics["curve"])
    assert metrics["test"]["sentences"] == 1000
    for rows in metrics["cuts"].values():
        assert sum(count for _, count, _ in rows) == 1000
    assert "version" in metrics["test"]["signature"]


def test_its_samples_are_translations(recipe_entry):
    assert len(recipe_entry["samples"]) >= 3
    for source, reference, translation in recipe_entry["samples"]:
        assert source == reference  # the task
        assert isinstance(translation, str)


def test_an_unknown_recipe_is_named() -> None:
    with (
        benchmark("run_recipe") as script,
        pytest.raises(
            SystemExit, match="^no recipe 'copi'; there are copy,"
        ),
    ):
        script.main("copi", out=Path("x"), json=Path("y"))


# --- what a corpus costs ---


@pytest.fixture(scope="module")
def scale() -> Iterator[ModuleType]:
    with benchmark("data_scale") as script:
        yield script


def test_a_corpus_without_text_is_planned_and_resumed(
    scale: ModuleType, tmp_path: Path
) -> None:
    assert scale.simulated(str(tmp_path), "3000") == {"made": 3000}
    one, other = (scale.simulated(str(tmp_path), "3000") for _ in "ab")
    assert one["pairs"] == 3000
    assert one["pairs_there"] == other["pairs_there"]


def test_what_a_prepared_corpus_costs_is_measured(
    scale: ModuleType, tmp_path: Path
) -> None:
    lines = [f"word{i % 50} " * (1 + i % 7) for i in range(400)]
    for language in ("de", "en"):
        path = tmp_path / f"x.{language}"
        path.write_text("\n".join(lines) + "\n", "utf-8")
    source = [
        "pair",
        "--src",
        str(tmp_path / "x.de"),
        "--tgt",
        str(tmp_path / "x.en"),
    ]
    out = tmp_path / "out"
    wish = [*source, "--vocab", "300", "--hold-out", "9"]
    made = scale.prepare(wish, out)
    assert made["seconds"] > 0
    assert 10 < made["peak_mib"] < 5000
    assert (
        scale.opening(str(out))["pairs"] == made["splits"]["train"]["pairs"]
    )
    found = scale.planning(str(out), "100")["100"]
    assert set(found["padding_percent"]) == {"source", "target"}
    assert found["loader_tokens_per_second"] > 0


def test_two_processes_and_two_threads_take_the_same_steps() -> None:
    """The benchmark of data parallelism, at a size that tells nothing."""
    options = {
        "d_model": 16, "layers": 1, "num_heads": 2, "d_ff": 32,
        "vocab": 50, "batch_tokens": 200, "length": 8, "rounds": 1,
        "steps": 2,
    }  # fmt: skip
    with benchmark("data_parallel") as script:
        found = script.measure(script.Settings(**options))
    assert found["largest_loss_gap"] < 1e-3
    assert found["ratio"] > 0
    assert found["processes_tokens_per_second"] > 0


# --- decode_speed.py ------------------------------------------------------


@pytest.fixture(scope="module")
def decode() -> Iterator[ModuleType]:
    with benchmark("decode_speed") as script:
        yield script


SMALL = [
    "--d-model=16", "--layers=2", "--num-heads=2", "--d-ff=32",
    "--vocab=60", "--sentences=5", "--length=8", "--output=7",
    "--batches=2", "--rounds=2", "--threads=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def task(decode: ModuleType):
    return decode.draw_task(
        decode.Settings(
            d_model=16, layers=2, num_heads=2, d_ff=32, vocab=60,
            sentences=5, length=8, output=7, batches=2, threads=1,
        )
    )  # fmt: skip


def test_every_translation_is_as_long_as_was_asked(
    decode: ModuleType, task, tmp_path: Path
) -> None:
    found = decode.ours(task, tmp_path)(task.sentences)
    assert [len(answer) for answer in found] == [6] * 10


@pytest.mark.parametrize("beam", [1, 4])
def test_torchs_search_finds_what_ours_does(
    decode: ModuleType, task, tmp_path: Path, beam: int
) -> None:
    task = replace(task, beam=beam)
    found = decode.torch_model(task, tmp_path)(task.sentences)
    assert found == decode.ours(task, tmp_path)(task.sentences)


@pytest.mark.parametrize(
    ("engine", "package"),
    [
        ("ctranslate2", "ctranslate2"),
        ("ctranslate2_workers", "ctranslate2"),
        pytest.param("marian", "transformers", marks=pytest.mark.slow),
    ],
)
def test_another_engine_does_the_same_work(
    decode: ModuleType, task, tmp_path: Path, engine: str, package: str
) -> None:
    pytest.importorskip(package)
    task = replace(task, beam=1)
    found = getattr(decode, engine)(task, tmp_path)(task.sentences)
    assert found == decode.ours(task, tmp_path)(task.sentences)


def test_a_comparison_leaves_out_who_is_absent_and_writes_the_ledger(
    decode: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("transformers", "ctranslate2"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(decode.time, "sleep", lambda seconds: None)
    slow = ("float32", "it is")
    monkeypatch.setattr(decode, "pick_precision", lambda device: slow)
    file = tmp_path / "new" / "speed.json"
    assert decode.main([*SMALL, "--no-memory", f"--json={file}"]) == 0
    said = capsys.readouterr().out
    assert "Marian is left out" in said
    assert "pip install ctranslate2" in said
    written = json.loads(file.read_text())
    assert written["command"].startswith(
        "python benchmarks/decode_speed.py --d-model 16 --layers 2 "
    )
    assert "--no-memory" in written["command"]
    assert "--json" not in written["command"]
    contenders = written["metrics"]["contenders"]
    assert set(contenders) == {
        "annotated", "annotated (one process)", "torch.nn", "annotated int8"
    }  # fmt: skip
    assert contenders["annotated"]["ratio"] == 1.0
    assert contenders["torch.nn"]["same"] > 0.9


def test_every_precision_takes_part_where_it_is_fast(
    decode: ModuleType,
    speed: ModuleType,
    task: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast = ("bfloat16", "it is")
    for script in (decode, speed):
        monkeypatch.setattr(script, "pick_precision", lambda device: fast)
    assert decode.Settings().names == list(decode.MAKERS)
    assert speed.Settings().precisions == ("float32", "bfloat16")
    asked = speed.Settings(precision=("bfloat16",))
    assert asked.precisions == ("bfloat16",)


def test_each_contender_can_be_asked_for_alone(decode: ModuleType) -> None:
    # as it is where the memory is measured
    for name in decode.MAKERS:
        assert decode.Settings(only=name).names == [name]


@pytest.mark.parametrize(
    ("engine", "package"),
    [
        ("ours_in_bfloat16", "torch"),
        ("ours_in_int8", "torch"),
        ("ctranslate2_int8", "ctranslate2"),
        ("ctranslate2_workers_int8", "ctranslate2"),
    ],
)
def test_fewer_digits_find_much_the_same(
    decode: ModuleType, task: Any, tmp_path: Path, engine: str, package: str
) -> None:
    pytest.importorskip(package)
    best = decode.ours(task, tmp_path)(task.sentences)
    found = getattr(decode, engine)(task, tmp_path)(task.sentences)
    assert [len(ids) for ids in found] == [6] * 10
    worth = decode.worth(task, found) / decode.worth(task, best)
    assert worth == pytest.approx(1.0, abs=0.05)


def test_a_worse_translation_is_no_answer(decode: ModuleType) -> None:
    good = decode.Outcome("annotated", 1.0, 1.0, 1.0, 1.0, 1.0, -20.0)
    lazy = replace(good, name="lazy", same=0.1, log_probability=-30.0)
    assert decode.doubts([good, replace(good, same=0.1)]) == []
    assert "lazy found 10%" in decode.doubts([good, lazy])[0]


# --- oracle.py ------------------------------------------------------------


@pytest.fixture(scope="module")
def oracle() -> Iterator[ModuleType]:
    with benchmark("oracle") as script:
        yield script


def test_the_oracle_and_the_fast_search_agree(
    oracle: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oracle.main(["--count=30", "--batch=6"]) == 0
    assert "30 sentences" in capsys.readouterr().out


def test_the_oracle_sees_a_difference(oracle: ModuleType) -> None:
    one = oracle.Hypothesis([4, 5], -2.0, -1.0)
    other = oracle.Hypothesis([4, 6], -2.0, -1.0)
    assert oracle.compare([one], [one], 1e-4) == (True, True)
    assert oracle.compare([one], [other], 1e-4) == (False, True)
    worse = oracle.Hypothesis([4, 5], -3.0, -1.5)
    assert oracle.compare([worse], [one], 1e-4) == (False, False)
    assert oracle.compare([], [one], 1e-4) == (False, False)


# --- what each decision is worth ---


@pytest.fixture(scope="module")
def decisions() -> Iterator[ModuleType]:
    with benchmark("decisions") as script:
        yield script


def test_every_row_differs_from_the_recipe_and_keeps_its_peak(
    decisions: ModuleType,
) -> None:
    def peak(recipe: Any) -> float:
        warmup, width = recipe.training.warmup, recipe.model.d_model
        return float(recipe.training.rate / (warmup * width) ** 0.5)

    for row, change in decisions.ROWS.items():
        made = decisions.varied(0.2, change, seed=1)
        assert made.training.seed == 1, row
        assert made.unlike(decisions.BASE).items() >= change.items(), row
        assert peak(made) == pytest.approx(peak(decisions.BASE), rel=0.002)
        steps = made.training.max_steps / decisions.BASE.training.max_steps
        assert steps == pytest.approx(0.2, rel=0.001)


def test_an_unknown_row_is_named(
    decisions: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(
        SystemExit, match="no row 'wider'; there are recipe"
    ):
        decisions.run(
            decisions.Settings(only=("wider",)), tmp_path / "runs.jsonl"
        )


def test_rows_are_means_over_their_seeds(decisions: ModuleType) -> None:
    runs = [
        {
            "row": "no dropout", "options": "--dropout 0.0", "seed": seed,
            "nats": 0.5, "valid_bleu": 30.0 + seed, "bleu": 20.0 + seed,
            "seconds": 1.0, "commit": "c", "hardware": f"machine {seed}",
        }
        for seed in (0, 1)
    ]  # fmt: skip
    found = decisions.result(decisions.Settings(), runs)
    assert found["metrics"]["rows"] == {
        "no dropout": {
            "options": "--dropout 0.0", "seeds": 2, "nats": 0.5,
            "valid_bleu": 30.5, "bleu": 20.5,
        }
    }  # fmt: skip
    assert found["wall_seconds"] == 2
    assert found["hardware"] == "machine 0; machine 1"
    assert found["commit"] == "c"
    more = runs[:1] + [runs[0] | {"row": "one head"}, *runs[1:]]
    found = decisions.result(decisions.Settings(seeds=0, share=1.0), more)
    assert found["command"] == (
        "python benchmarks/decisions.py --share 1.0 --only 'one head'; "
        "python benchmarks/decisions.py --share 1.0 --seeds 2"
        " --only 'no dropout'"
    )
    assert found["settings"] == {"share": 1.0, "seeds": 2}


# --- mutation.py ------------------------------------------------------------


@pytest.fixture(scope="module")
def mutation() -> Iterator[ModuleType]:
    with benchmark("mutation") as module:
        yield module


def test_every_module_and_test_file_of_the_mutations_is_there(
    mutation: ModuleType,
) -> None:
    for module, tests in mutation.TESTS.items():
        assert (ROOT / "annotated" / f"{module}.py").is_file(), module
        for name in tests.split():
            assert mutation.file_of_tests(ROOT, name).is_file()


def test_only_tried_mutants_count_and_only_told_survivors_are_explained(
    mutation: ModuleType, tmp_path: Path
) -> None:
    ends = ["killed", "timeout", "survived", "untested", None, "survived"]
    told = []
    for number, end in enumerate(ends):
        one: dict[str, Any] = {"function": "f", "was": "x"}
        one["now"] = f"y{number}"
        one |= {"digest": "new", "number": number}
        told.append(one)
        if end is None:
            continue
        (tmp_path / "loss.jsonl").open("a").write(
            json.dumps(one | {"end": end, "commit": "abc"}) + "\n"
        )
    (tmp_path / "loss.all.json").write_text(json.dumps(told))
    # of an older function, and of a survivor that was tried again
    with (tmp_path / "loss.jsonl").open("a") as file:
        old = told[4] | {
            "digest": "old",
            "end": "survived",
            "commit": "abc",
        }
        new = told[5] | {"end": "killed", "commit": "abd"}
        file.write(f"{json.dumps(old)}\n{json.dumps(new)}\n")
    reasons = {("loss", "f", "y2"): "nobody can tell"}
    results = mutation.results(tmp_path, "loss")
    found = mutation.count("loss", results, reasons)
    assert (found["mutants"], found["tried"]) == (6, 5)
    assert (found["killed"], found["by_time"]) == (3, 1)
    assert (found["survived"], found["explained"]) == (2, 1)
    assert [one["why"] for one in found["survivors"]] == [
        "nobody can tell",
        None,
    ]
    assert found["commits"] == ["abc", "abd"]


def test_explanations_are_by_module_function_and_new_line(
    mutation: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "survivors.toml"
    assert mutation.explanations(path) == {}
    path.write_text(
        '[[survivor]]\nmodule = "loss"\nfunction = "f"\n'
        'now = ["x", "z"]\nwhy = "y"\n'
    )
    assert mutation.explanations(path) == {
        ("loss", "f", "x"): "y",
        ("loss", "f", "z"): "y",
    }


def test_the_ledger_keeps_modules_that_a_run_knows_nothing_of(
    mutation: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    package = tmp_path / "annotated"
    package.mkdir()
    code = (
        'def f(x):\n    """Add."""\n    return x + 1\n\n\n'
        "class A:\n    @property\n    def g(self):\n        return 3\n"
    )
    for module in ("loss", "masks", "layers", "tokens"):
        (package / f"{module}.py").write_text(code)
    monkeypatch.setattr(mutation, "ROOT", tmp_path)

    def one(commit: str, now: str) -> dict[str, Any]:
        return {
            "commits": [commit],
            "digest": mutation.digest(package / "loss.py"),
            "mutants": 2,
            "tried": 1,
            "explained": 0,
            "survivors": [{"function": "f", "was": "x", "now": now}],
        }

    ledger = tmp_path / "mutation.json"
    first = {name: one("a", "old") for name in ("loss", "masks", "layers")}
    entry = mutation.as_entry(ledger, first, {})
    assert set(entry["metrics"]["modules"]) == set(first)
    ledger.write_text(json.dumps(entry))
    # words may change, code may not
    said = code.replace("Add.", "Plus.")
    said = said.replace("    return x", "    # 1\n    return x")
    (package / "masks.py").write_text(said)
    (package / "layers.py").write_text(code.replace("3", "4"))
    again = {name: one("b", "new") for name in ("loss", "tokens")}
    reasons = {("masks", "f", "old"): "the same"}
    found = mutation.as_entry(ledger, again, reasons)
    modules = found["metrics"]["modules"]
    assert list(modules) == ["masks", "tokens", "loss"]
    assert modules["loss"] == again["loss"]
    assert modules["masks"]["explained"] == 1
    assert modules["masks"]["survivors"][0]["why"] == "the same"
    assert found["metrics"]["incomplete"] == list(modules)
    assert "layers" in found["metrics"]["not_begun"]
    assert found["commit"] == "a, b"
    assert "layers has changed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change",
    [
        ("x + 1", "x - 1"),
        ("    @property\n", ""),
        ("def f", "def h"),
        ("class A", "class B"),
    ],
)
def test_a_change_of_a_function_changes_its_digest(
    mutation: ModuleType, tmp_path: Path, change: tuple[str, str]
) -> None:
    code = "def f(x):\n    return x + 1\n"
    code += "class A:\n    @property\n    def g(self):\n        return 3\n"
    path = tmp_path / "module.py"
    path.write_text(code)
    before = mutation.digest(path)
    path.write_text("import os\n\n" + code)
    assert mutation.digest(path) == before
    path.write_text(code.replace(*change))
    assert mutation.digest(path) != before


def functions_of(module: str) -> set[str]:
    """The functions and methods of a module of the package."""
    tree = ast.parse(
        (ROOT / "annotated" / f"{module}.py").read_text("utf-8")
    )
    kinds = ast.FunctionDef, ast.AsyncFunctionDef
    return {one.name for one in tree.body if isinstance(one, kinds)} | {
        f"{one.name}.{part.name}"
        for one in tree.body
        if isinstance(one, ast.ClassDef)
        for part in one.body
        if isinstance(part, kinds)
    }


def test_the_ledger_of_mutants_is_of_this_package_and_each_survivor_told(
    mutation: ModuleType,
) -> None:
    file = ROOT / "book" / "results" / "mutation.json"
    metrics = json.loads(file.read_text("utf-8"))["metrics"]
    reasons = mutation.explanations(ROOT / "benchmarks" / "survivors.toml")
    begun, told = metrics["modules"], set()
    for module, found in begun.items():
        gone = set(found["functions"]) - functions_of(module)
        assert not gone, f"{module} has no {gone}: run the mutants again"
        assert found["tried"] == found["killed"] + found["survived"]
        assert found["survived"] == len(found["survivors"])
        for one in found["survivors"]:
            key = module, one["function"], one["now"]
            assert one["why"] == reasons.get(key), key
            # a module that is not finished is counted, and no more
            if found["tried"] == found["mutants"]:
                assert key in reasons, f"no test, and no word why: {key}"
            told.add(key)
    assert not set(reasons) - told, "explained, but no survivor"
    assert metrics["incomplete"] == [
        name for name, one in begun.items() if one["tried"] < one["mutants"]
    ]
    assert set(metrics["not_begun"]) == set(mutation.TESTS) - set(begun)


def test_runs_of_each_seed_are_made_once(tmp_path: Path) -> None:
    work, made = tmp_path / "runs.jsonl", []

    def make(name: str, seed: int) -> dict[str, Any]:
        made.append((name, seed))
        return {"seconds": 7.0} if name == "b" else {}

    with benchmark("ledger") as script:
        script.make_each(work, 1, "row", ("a", "b"), make)
        script.make_each(work, 2, "row", ("a", "b"), make)
        runs = script.read(work)
    assert made == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert [(run["row"], run["seed"]) for run in runs] == made
    assert [run["seconds"] == 7 for run in runs] == [False, True] * 2
