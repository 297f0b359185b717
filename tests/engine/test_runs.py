"""A run's folder from its beginning to its use: engine.runs, start and
translate, from page E9.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from annotated.checkpoints import average_weights
from annotated.engine import (
    runner,
    translate,
)
from annotated.engine.checkpoints import checkpoints
from annotated.engine.errors import (
    RunError,
)
from annotated.engine.machine import pick_device
from annotated.engine.runner import train_recipe
from annotated.engine.runs import (
    Run,
    read_metrics,
    read_recipe,
    results_of,
)
from annotated.engine.tensors import load_weights
from annotated.engine.trainer import Trainer
from annotated.engine.translate import _one_line
from annotated.search import SearchConfig
from tests.engine.folders import (
    TINY,
    replaced,
    same_training,
)
from tests.helpers import at_step, content

# --- training -------------------------------------------------------------


def test_a_finished_run_has_all_its_files(finished: Path) -> None:
    assert set(content(finished)) == {
        "recipe.json",
        "source.json",
        "target.json",
        "metrics.jsonl",
        "model.safetensors",
        "summary.json",
        "best.safetensors",
        "checkpoints/00000015/checksums.json",
        "checkpoints/00000015/model.safetensors",
        "checkpoints/00000015/optimizer.safetensors",
        "checkpoints/00000015/state.json",
        "checkpoints/00000020/checksums.json",
        "checkpoints/00000020/model.safetensors",
        "checkpoints/00000020/optimizer.safetensors",
        "checkpoints/00000020/state.json",
    }
    assert read_recipe(finished) == TINY


@pytest.mark.parametrize("better", ["the mean", "the last"])
def test_the_model_is_the_mean_unless_the_last_is_better(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    better: str,
) -> None:
    at_the_end = [1.0, 1.1] if better == "the mean" else [1.1, 1.0]
    scores = iter([3.0, 2.0, 2.0, 1.1, *at_the_end])

    def found(*_: Any) -> dict[str, float]:
        return {"loss": 0.0, "nll": next(scores), "perplexity": 0.0}

    monkeypatch.setattr(Trainer, "validate", found)
    summary = train_recipe(TINY, tmp_path / "run")
    model = load_file(tmp_path / "run" / "model.safetensors")
    places = checkpoints(tmp_path / "run" / "checkpoints")
    count = len(places) if better == "the mean" else 1
    files = [p / "model.safetensors" for p in places[-count:]]
    expected = average_weights(files)
    assert all(torch.equal(expected[name], model[name]) for name in model)
    assert summary["averaged"] == count
    assert summary["valid"]["nll"] == 1.0
    said = "better than the mean of 2" in capsys.readouterr().err
    assert said == (better == "the last")


def test_the_summary_says_what_was_done(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["steps"] == 20
    files = [
        p / "model.safetensors"
        for p in checkpoints(finished / "checkpoints")
    ]
    mean = average_weights(files[-summary["averaged"] :])
    model = load_file(finished / "model.safetensors")
    assert all(torch.equal(mean[name], model[name]) for name in model)
    assert 1 < summary["epochs"] < 20
    steps = [e for e in read_metrics(finished) if "loss" in e]
    assert summary["tokens"] == steps[-1]["tokens"]
    assert summary["valid"].keys() == {"loss", "nll", "perplexity"}


def test_the_best_checkpoint_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation finds step 10 the best; it is dropped, and stays."""
    scores = iter([3.0, 1.0, 2.0, 1.5, 1.2, 1.3])

    def found(*_: Any) -> dict[str, float]:
        return {"loss": 0.0, "nll": next(scores), "perplexity": 0.0}

    kept: dict[str, bytes] = {}

    def keep() -> None:
        place = tmp_path / "run" / "checkpoints" / "00000010"
        kept["10"] = (place / "model.safetensors").read_bytes()

    monkeypatch.setattr(Trainer, "validate", found)
    at_step(monkeypatch, 11, keep)
    summary = train_recipe(TINY, tmp_path / "run")
    assert summary["best"] == 10
    best = tmp_path / "run" / "best.safetensors"
    assert best.read_bytes() == kept["10"]
    places = checkpoints(tmp_path / "run" / "checkpoints")
    assert [p.name for p in places] == ["00000015", "00000020"]


def test_minutes_write_a_checkpoint_that_is_not_averaged(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = TINY.changed(save_minutes=1e-9)
    seen: list[list[str]] = []
    places = tmp_path / "run" / "checkpoints"

    def look() -> None:
        seen.append([p.name[-2:] for p in checkpoints(places)])

    averaged: list[list[str]] = []

    def mean(files: list[Path]) -> dict[str, Any]:
        averaged.append([file.parent.name[-2:] for file in files])
        return average_weights(files)

    at_step(monkeypatch, 18, look)
    monkeypatch.setattr(runner, "average_weights", mean)
    train_recipe(always, tmp_path / "run")
    assert seen == [["10", "15", "17"]]
    assert averaged == [["15", "20"], ["20"]]
    same_training(finished, tmp_path / "run")


def test_steps_and_validations_are_noted(finished: Path) -> None:
    notes = read_metrics(finished)
    assert [e["step"] for e in notes if "loss" in e] == [1, 10, 20]
    assert [e["step"] for e in notes if "valid" in e] == [5, 10, 15, 20]


def test_a_folder_with_anything_in_it_is_left_alone(run: Path) -> None:
    before = content(run)
    with pytest.raises(RunError, match="is not empty.*--resume"):
        train_recipe(TINY, run)
    assert content(run) == before


def test_a_file_is_no_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for place in ("file", "file/run"):
        with pytest.raises(RunError, match="is a file: choose another"):
            train_recipe(TINY, tmp_path / place)
    assert (tmp_path / "file").read_text() == "precious"


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        pytest.skip("root may write anywhere; on Windows, anyone here")
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(PermissionError):
        train_recipe(TINY, tmp_path / "locked" / "run")


def test_opening_a_run_does_not_disturb_the_dice_of_others(
    run: Path,
) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    Run.open(run)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "meta", "mps"])
def test_a_device_that_is_not_there_is_refused(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(RunError, match=f"no '{name}' device"):
        train_recipe(TINY, tmp_path / "run", device=name)
    assert not (tmp_path / "run").exists()


def test_the_processor_is_there() -> None:
    assert pick_device("cpu") == "cpu"
    assert pick_device() in ("cpu", "cuda")


# --- opening a run --------------------------------------------------------


def test_what_was_trained_can_be_opened(finished: Path) -> None:
    run = Run.open(finished)
    weights = load_file(finished / "model.safetensors")
    for name, parameter in run.model.named_parameters():
        assert torch.equal(parameter, weights[name])
    assert not run.model.training


def test_a_run_under_way_opens_at_its_newest_checkpoint(run: Path) -> None:
    (run / "model.safetensors").unlink()
    newest = run / "checkpoints" / "00000020" / "model.safetensors"
    model = Run.open(run).model
    expected = load_file(newest)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[name])


def test_any_weights_of_the_run_can_be_opened(run: Path) -> None:
    older = run / "checkpoints" / "00000015" / "model.safetensors"
    model = Run.open(run).model
    load_weights(model, older)
    expected = load_file(older)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[name])


def test_a_run_without_weights_says_so(run: Path) -> None:
    (run / "model.safetensors").unlink()
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(RunError, match="no weights yet"):
        Run.open(run)


def written(name: str, text: bytes) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / name).write_bytes(text)

    return change


def cut(name: str, size: int) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        path = run / name
        path.write_bytes(path.read_bytes()[:size])

    return change


def another_vocabulary(run: Path) -> None:
    for name in ("source.json", "target.json"):
        tokens = json.loads((run / name).read_text())
        words = tokens["model"]["vocab"]
        words.pop(max(words, key=words.get))
        (run / name).write_text(json.dumps(tokens))


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no folder": (shutil.rmtree, "is not a run folder"),
    "no recipe": (lambda r: (r / "recipe.json").unlink(), "no recipe.json"),
    "no tokens": (lambda r: (r / "target.json").unlink(), "target.json"),
    "no JSON": (written("recipe.json", b"{"), "recipe.json is damaged"),
    "empty": (written("recipe.json", b""), "recipe.json is damaged"),
    "a list": (written("recipe.json", b"[]"), "recipe.json is damaged"),
    "bytes": (
        written("recipe.json", b"\xff\xfe"),
        "recipe.json is damaged",
    ),
    "unknown field": (replaced(heads=3), "unexpected .* 'heads'"),
    "unknown in a part": (
        replaced("training", speed=3),
        "unexpected .* 'speed'",
    ),
    "missing part": (replaced(search=...), "damaged: KeyError.*search"),
    "part of no fields": (
        replaced(model=3),
        "PartsShape.* mapping, not int",
    ),
    "missing field": (replaced(data=...), "data"),
    "wrong value": (
        replaced("model", d_model=17),
        "num_heads 2 does not divide",
    ),
    "wrong type": (replaced("model", d_model="16"), "d_model must be"),
    "wrong kind": (replaced("model", dropout="much"), "is damaged"),
    "no tokenizer": (written("source.json", b"{}"), "source.json is no"),
    "half a tokenizer": (cut("source.json", 99), "source.json is no"),
    "another vocabulary": (another_vocabulary, "does not fit the model"),
    "another model": (replaced("model", d_ff=8), "does not fit the model"),
    "no weights": (cut("model.safetensors", 0), "cannot be read"),
    "half the weights": (cut("model.safetensors", 5000), "cannot be read"),
    "other weights": (
        lambda r: save_file({"w": torch.ones(1)}, r / "model.safetensors"),
        "does not fit the model",
    ),
}


@pytest.mark.parametrize("text", ["[]", "null", "3", "{"])
@pytest.mark.parametrize("name", ["summary.json", "scores.json"])
def test_scores_that_are_no_table_are_named(
    tmp_path: Path, name: str, text: str
) -> None:
    assert results_of(tmp_path) == {}
    (tmp_path / name).write_text(text)
    with pytest.raises(RunError, match=f"{name} is damaged"):
        results_of(tmp_path)


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run_is_refused_with_the_reason(
    run: Path, name: str
) -> None:
    damage, complaint = DAMAGE[name]
    damage(run)
    with pytest.raises(RunError, match=complaint) as caught:
        Run.open(run)
    assert str(run) in str(caught.value)


def test_a_recipe_that_windows_saved_is_read(run: Path) -> None:
    path, recipe = run / "recipe.json", Run.open(run).recipe
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert Run.open(run).recipe == recipe


def test_a_model_of_transformers_is_told_from_a_run(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{}")
    with pytest.raises(RunError, match="annotated import marian"):
        Run.open(tmp_path)


# --- translating ----------------------------------------------------------


@pytest.fixture(scope="module")
def opened(finished: Path) -> Run:
    return Run.open(finished)


def test_every_line_has_its_translation(opened: Run) -> None:
    lines = ["a b", "", "c", "  \t ", "zzz", "d " * 600, "a b"]
    found = opened.translate(lines)
    assert [len(best) for best in found] == [1] * len(lines)
    assert found[1][0].text == found[3][0].text == ""
    assert found[0][0].text == found[-1][0].text
    assert found[0][0].score == pytest.approx(found[-1][0].score, abs=1e-4)


def test_one_text_is_no_list_of_lines() -> None:
    """Or each of its letters would be translated by itself."""
    with pytest.raises(TypeError, match=r"write \['Anna schläft \.'\]"):
        Run.open(Path("pocket")).translate("Anna schläft .")


def test_no_lines_have_no_translations(opened: Run) -> None:
    assert opened.translate([]) == []
    assert opened.translate(["", " "])[1][0].score == 0.0


def test_a_long_line_is_translated_in_pieces(
    opened: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translate, "_MAX_SOURCE", 3)
    whole = opened.translate(["a b c d e f g"])[0]
    parts = opened.translate(["a b c", "d e f", "g"])
    text = " ".join(part[0].text for part in parts)
    assert [t.text for t in whole] == [text]


def test_nbest_comes_in_order_the_best_first(opened: Run) -> None:
    search = SearchConfig(beam=4, nbest=3)
    best = opened.translate(["a b c d"], search)[0]
    assert len(best) == 3
    scores = [t.score for t in best]
    assert scores == sorted(scores, reverse=True)


def test_learned_positions_bound_the_pieces(tmp_path: Path) -> None:
    recipe = TINY.changed(
        positions="learned", max_len=14, extra=3, max_steps=1
    )
    train_recipe(recipe, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert len(run.translate(["a " * 100])) == 1
    with pytest.raises(
        RunError, match="extra 14 is too big for max_len 14"
    ):
        run.translate(["a"], SearchConfig(extra=14))


@pytest.mark.parametrize(
    "end", list("\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
)
def test_no_translation_is_two_lines(end: str) -> None:
    assert _one_line(f"a{end}b") == "a b"
    assert _one_line(f"a{end}") == "a"
