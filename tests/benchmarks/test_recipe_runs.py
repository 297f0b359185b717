"""The benchmarks that train recipes, plan corpora and try decisions."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tyro

from annotated.book.results import ledger
from annotated.engine.parts import PartsConfig, build
from annotated.engine.recipes import RECIPES
from annotated.engine.trainer import RunConfig
from annotated.training import copy_corpus
from tests.helpers import ROOT, benchmark

# --- a recipe, trained and scored -----------------------------------------


RECIPE = [
    "copy", "--json", "{}/entry.json", "--out", "{}/run", "--split", "valid",
    "--count", "3", "--", "--max-steps", "4", "--save-every", "2",
    "--train-pairs", "50", "--d-model", "16", "--d-ff", "16", "--beam", "1",
]  # fmt: skip


def run_recipe(folder: Path, *options: str) -> dict[str, Any]:
    """The ledger file of a small run, made there if there is none."""
    words = [word.format(folder) for word in RECIPE]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("OMP_NUM_THREADS", "1")
        with benchmark("run_recipe") as script:
            tyro.cli(script.main, args=[*options, *words])
    return json.loads((folder / "entry.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ledger")


@pytest.fixture(scope="module")
def recipe_entry(small_run: Path) -> dict[str, Any]:
    return run_recipe(small_run)


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


def test_a_run_that_is_only_timed_leaves_the_test_set_closed(
    recipe_entry, small_run
):
    timed = run_recipe(small_run, "--no-score")
    assert timed["metrics"]["seconds"] == recipe_entry["metrics"]["seconds"]
    assert not {"test", "cuts"} & timed["metrics"].keys()
    assert timed["samples"] == []


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


def test_the_test_set_is_opened_when_it_is_asked_for_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["Anna schläft .", "Die Hunde schlafen .", "Wer schläft ?"]
    texts = ["Anna sleeps .", "The dogs sleep .", "Who sleeps ?"]
    asked: list[str] = []

    class Few:
        def text(self, split: str) -> tuple[list[str], list[str]]:
            asked.append(split)
            return lines, texts

    with benchmark("mbr") as script:
        monkeypatch.setattr(script, "open_data", lambda recipe: Few())
        file = tmp_path / "F.json"
        runs = ("pocket",)
        how = script.Settings(runs=runs, draws=(2, 3), json=file)
        script.main(how)
        assert asked == ["valid"]
        for _ in range(2):
            script.main(replace(how, test=3))
        assert asked == ["valid", "test"]
    found = json.loads(file.read_text(encoding="utf-8"))
    [one] = found["metrics"]["runs"]
    assert one["valid"].keys() == {"beam", "2", "3"}
    assert one["test"].keys() == {"beam", "3"}
    assert one["test"]["beam"]["translations"] == texts
    assert one["test_seconds"]["3"] > one["test_seconds"]["beam"] > 0
    assert datetime.fromisoformat(one["opened"]).tzinfo is not None
    assert "--runs RUN0 --draws 2 3 --test 3" in found["command"]


# --- how the recipe was found ---


def test_every_trial_is_a_recipe_that_says_all_that_it_changes() -> None:
    with benchmark("trials") as script:
        for name, change in script.TRIALS.items():
            script.imports(name)
            fields = {k: v for k, v in change.items() if k != "import"}
            made = RECIPES["multi30k"].changed(**fields)
            assert fields.keys() >= script.FIRST.keys(), name
            assert fields.items() <= made.flat().items(), name


def test_r_drop_is_two_losses_and_how_far_they_are_apart() -> None:
    torch.manual_seed(0)
    logits = torch.randn(80, 7, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(7, (40,)).repeat(2)
    with benchmark("r_drop") as script:
        found = script.r_drop(logits, labels, RunConfig())
        corpus = copy_corpus(50, vocab=12)
        plan = script.twice(corpus, RunConfig(batch_tokens=100), 0)
    smoothed = F.cross_entropy(
        logits, labels, label_smoothing=0.1, reduction="none"
    )
    first, second = logits.log_softmax(-1).split(40)
    apart = ((first.exp() - second.exp()) * (first - second)).sum(-1)
    expected = smoothed + 5 / 4 * apart.repeat(2)
    assert torch.allclose(found, expected, rtol=1e-12)
    grads = [
        torch.autograd.grad(loss.sum(), logits)[0]
        for loss in (found, expected)
    ]
    assert torch.allclose(*grads, rtol=1e-12)
    for pairs in plan:
        assert np.array_equal(*np.split(pairs, 2))
    assert np.unique(np.concatenate(plan)).tolist() == [*range(50)]


def test_word_dropout_leaves_out_a_tenth_of_the_tokens_in_training() -> (
    None
):
    torch.manual_seed(0)
    with benchmark("word_dropout"):
        config = PartsConfig(
            src_vocab=50, tgt_vocab=60, d_model=8, num_heads=2, tie="none",
            parts=("word-dropout",),
        )  # fmt: skip
        assert config.padded() == ""
        model = build(config)
    part, ids = model.embeddings, torch.arange(50).repeat(200)
    for read, table in (
        (part.read_source, part.source), (part.read_target, part.target)
    ):  # fmt: skip
        part.train()
        x = read(ids)
        part.eval()
        kept = x.any(dim=-1)
        assert 0.88 < kept.double().mean() < 0.92
        full = table[ids] * 8**0.5
        assert torch.allclose(x[kept], full[kept] / 0.9)
        assert torch.equal(read(ids), full)


@pytest.mark.parametrize("name", [".lock", "recipe.json"])
def test_a_trial_is_resumed_if_it_had_begun(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not if it was stopped while its corpus was read."""
    asked: list[str] = []

    def annotated(*words: str) -> None:
        asked.extend(words)
        sys.exit(2)

    with benchmark("trials") as script:
        folder = script.folder_of(tmp_path, "R-Drop", 0)
        folder.mkdir()
        (folder / name).touch()
        monkeypatch.setattr(script, "annotated", annotated)
        with pytest.raises(SystemExit):
            script.made(tmp_path, "R-Drop", 0)
    assert ("--resume" in asked) == (name == "recipe.json")


def spelled(options: str) -> dict[str, str]:
    """Each option of a command line, and its words."""
    return dict(o.split(" ", 1) for o in f" {options}".split(" --")[1:])


def test_what_the_ledger_says_of_the_trials_makes_them_again() -> None:
    found = ledger()["multi30k-trials"]
    words = shlex.split(found["command"])
    assert words[:2] == ["python", "benchmarks/trials.py"]
    with benchmark("trials") as script:
        settings = tyro.cli(script.Settings, args=words[2:])
        assert set(settings.only) == found["metrics"]["rows"].keys()
        assert {*settings.only, *settings.after} <= script.TRIALS.keys()
        for name, row in found["metrics"]["rows"].items():
            options = " ".join(script.words(script.TRIALS[name]))
            # what was typed before the recipe itself had rotary positions
            before = {"positions": "sinusoidal"}
            assert before | spelled(row["options"]) == spelled(options)
