"""annotated report: one page that says what the run folder says."""

import contextlib
import io
import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

import matplotlib.pyplot as plt
import torch

from annotated.book.plots import plot_attention
from annotated.book.report import (
    _curves,
    _flat,
    _plainly,
    _shown,
    _svg,
    report,
)
from annotated.cli import dispatch
from annotated.engine.errors import RunError, UsageError
from annotated.engine.recipes import RECIPES
from annotated.engine.runner import train_recipe
from annotated.engine.runs import Run, read_metrics


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "run"
    recipe = RECIPES["copy"].changed(
        d_model=16, d_ff=32, num_heads=2, max_steps=20, save_every=10, train_pairs=100, valid_pairs=20,
        num_encoder_layers=1, num_decoder_layers=2, batch_tokens=100,
    )  # fmt: skip
    with contextlib.redirect_stderr(io.StringIO()):
        train_recipe(recipe, folder)
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return report(run)


def test_it_says_what_the_folder_says(run: Path, page: str) -> None:
    summary = json.loads((run / "summary.json").read_text())
    for name, value in _flat(summary):
        assert f"<th>{name}</th><td>{_plainly(value)}</td>" in page
    assert f"{summary['parameters']:,}" in page
    assert "<b>max_steps = 20</b>" in page  # changed from the recipe's
    assert "<li>alpha = 0.6</li>" in page  # as in the recipe


def test_it_has_the_test_scores_that_were_kept(run, page, tmp_path) -> None:
    assert "evaluate --run run --split test --keep" in page
    other = shutil.copytree(run, tmp_path / "other")
    beside = {"bleu": 1.25, "nearest": {"bleu": 2.5, "chrf": 3.5}}
    (other / "scores.json").write_text(json.dumps({"test": beside}))
    said = report(other, [])
    for name, value in (("bleu", "1.25"), ("nearest bleu", "2.5")):
        assert f"<th>test {name}</th><td>{value}</td>" in said
    assert "--keep" not in said


def test_it_asks_nothing_of_the_network(page: str) -> None:
    for loads in ("<script", "<link", "<img", "url(", "@import", "src="):
        assert loads not in page.replace("url(#", ""), loads


def test_names_of_languages_are_text_too(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    recipe = json.loads((other / "recipe.json").read_text("utf-8"))
    recipe |= {"source": "<script>1</script>", "target": "<b>"}
    (other / "recipe.json").write_text(json.dumps(recipe))
    said = report(other, [])
    assert "&lt;script&gt;1&lt;/script&gt; to &lt;b&gt;</h1>" in said
    assert "<script>" not in said and "<b></h1>" not in said


def test_its_translations_are_the_runs(run: Path, page: str) -> None:
    lines = ["a b c", "k", "<b> & c"]
    said = report(run, lines)
    found = Run.open(run).translate(lines)
    assert "<h3>&lt;b&gt; &amp; c</h3>" in said and "<b> &" not in said
    for best in found:
        assert f"<p>{best[0].text}<br>" in said
        assert f"score {best[0].score:.2f}" in said
    assert "reference:" in page and "reference:" not in said


def test_a_long_line_is_translated_and_not_drawn(run, monkeypatch) -> None:
    lines = ["a b c", "k"]
    for widest, pictures in ((500, 1 + len(lines)), (0, 1)):
        monkeypatch.setattr("annotated.book.report._WIDEST", widest)
        said = report(run, lines)
        assert said.count("<svg role") == pictures
        assert said.count("<h3>") == len(lines)


def test_the_curves_are_the_log(run: Path) -> None:
    metrics = read_metrics(run)
    again = [e | {"nll": 9.0} for e in metrics if e["step"] == 10]
    for entries in (metrics, again + metrics):  # the later line counts
        figure = _curves(entries)
        assert figure is not None
        training, checks = figure.axes[0].lines
        logged = {e["step"]: e["nll"] for e in metrics if "nll" in e}
        assert list(training.get_xdata()) == sorted(logged)
        assert list(training.get_ydata()) == [
            logged[s] for s in sorted(logged)
        ]
        assert list(checks.get_xdata()) == [10, 20]
    assert _curves([]) is None


def test_a_run_without_log_and_summary_has_a_page(run, tmp_path) -> None:
    bare = Path(shutil.copytree(run, tmp_path / "bare"))
    for name in ("metrics.jsonl", "summary.json"):
        (bare / name).unlink()
    said = report(bare, [])
    assert "no log of its training" in said and "Result" not in said
    assert "Translations" not in said and "<h2>Model</h2>" in said


@pytest.mark.parametrize("text", ["{", "3", '["a"]'])
def test_a_damaged_summary_is_named(run, tmp_path, text) -> None:
    bad = Path(shutil.copytree(run, tmp_path / "bad"))
    (bad / "summary.json").write_text(text)
    with pytest.raises(RunError, match="summary.json is damaged"):
        report(bad, [])


def test_a_token_is_no_formula() -> None:
    weights, tokens = torch.eye(2), ["$x^^$", "costs $5"]
    plot_attention(weights, tokens)
    with pytest.raises(ValueError):
        _svg(plt.gcf(), "")
    plt.close("all")
    plot_attention(weights, _shown(tokens))
    assert "$x^^$" in _svg(plt.gcf(), "")


def test_the_command_overwrites_nothing(run, tmp_path, capsys) -> None:
    out, text = tmp_path / "r.html", tmp_path / "mine.txt"
    text.write_text("a b\n")
    line = ["report", "--run", str(run), "--out", str(out)]
    dispatch([*line, "--text", str(text)])
    assert capsys.readouterr().out == f"{out.as_uri()}\n"
    assert out.read_text("utf-8").endswith("</html>\n")
    with pytest.raises(UsageError, match="exists: choose another --out"):
        dispatch(line)
    with pytest.raises(UsageError, match="there is no folder"):
        dispatch([*line[:-1], str(tmp_path / "not" / "there.html")])


def test_what_is_no_run_leaves_no_file(tmp_path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        line = ["report", "--run", str(tmp_path), "--out"]
        dispatch([*line, str(tmp_path / "r.html")])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2_900_000, "2,900,000"), (2.0, "2"), (0.00123456, "0.001235"),
        (None, "unset"), (True, "yes"), (False, "no"), ("x", "x"),
        ([], ""), ([1, 2.5], "1, 2.5"), (float("nan"), "nan"),
    ],
)  # fmt: skip
def test_numbers_are_a_readers(value, text) -> None:
    assert _plainly(value) == text
