"""Exported from the book; edit the chapter, then run `make export`."""

import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from annotated.book.figures import as_svg
from annotated.book.plots import plot_attention, use_book_style
from annotated.corpora.registry import registry
from annotated.costs import step_flops
from annotated.engine.data import open_data, prepared_data
from annotated.engine.errors import DataError, RunError, UsageError
from annotated.engine.recipes import RECIPES
from annotated.engine.runs import (
    SCORES,
    Run,
    read_metrics,
    results_of,
    run_folder,
)
from annotated.search import alignment

__all__ = ["recipe_name", "html_page", "report", "sample_pairs"]


# E24-report.md: Pictures
def _curves(metrics: Sequence[dict[str, Any]]) -> Figure | None:
    """Loss and validation, learning rate, and norm of the gradient, by
    step; None if no step was logged.
    """
    steps = {e["step"]: e for e in metrics if "nll" in e}
    checks = {e["step"]: e["valid"]["nll"] for e in metrics if "valid" in e}
    if not steps:
        return None
    size, heights = (8.0, 6.4), {"height_ratios": [3, 1, 1]}
    figure, axes = plt.subplots(
        3, 1, figsize=size, sharex=True, gridspec_kw=heights
    )
    loss, rate, norm = axes
    x = sorted(steps)
    loss.plot(x, [steps[s]["nll"] for s in x], lw=1, label="training")
    if checks:
        y = sorted(checks)
        loss.plot(y, [checks[s] for s in y], "o-", ms=3, label="validation")
    if old := {e["step"]: e["old"]["nll"] for e in metrics if "old" in e}:
        y = sorted(old)
        loss.plot(y, [old[s] for s in y], "s--", ms=3, label="old data")
    loss.legend()
    loss.set_ylabel("nats per token")
    rate.plot(x, [steps[s]["rate"] for s in x], lw=1)
    rate.set_ylabel("learning rate")
    norm.plot(x, [steps[s]["gradient_norm"] for s in x], lw=1)
    norm.set_ylabel("gradient norm")
    norm.set_yscale("log")
    norm.set_xlabel("step")
    return figure


def _svg(figure: Figure, what: str) -> str:
    """A figure as an element of a page, with a text for those who cannot
    see it.
    """
    drawn = as_svg(figure)
    drawn = drawn[drawn.index("<svg") :]
    named = f'<svg role="img" aria-label="{escape(what)}"'
    return f"<figure>{named}{drawn.removeprefix('<svg')}</figure>"


# E24-report.md: Translations
_WIDEST = 30  # tokens of a sentence whose attention is drawn


def _shown(tokens: Sequence[str]) -> list[str]:
    """Tokens for Matplotlib, to which two $ are a formula."""
    return [token.replace("$", r"\$") for token in tokens]


def _translations(
    run: Run, lines: Sequence[str], references: Sequence[str] = ()
) -> str:
    """The lines, their translations, scores and attention, as HTML."""
    translations = run.translate(lines)
    parts = []
    for i, (line, best) in enumerate(zip(lines, translations, strict=True)):
        text, score = best[0].text, best[0].score
        beside = f"score {score:.2f}"
        if i < len(references):
            beside += f"; reference: {references[i]}"
        parts.append(
            f"<h3>{escape(line)}</h3><p>{escape(text)}<br>"
            f'<span class="faint">{escape(beside)}</span></p>'
        )
        [src], [tgt] = run.source.encode([line]), run.target.encode([text])
        if max(len(src), len(tgt)) <= _WIDEST:
            weights = alignment(run.model, src, tgt)[-1].mean(0)
            names = _shown([*run.source.tokens(src), "⟨end⟩"])
            rows = _shown([*run.target.tokens(tgt), "⟨end⟩"])
            plot_attention(weights, rows, names, annotate=False)
            what = f"What each token of “{text}” looked at in “{line}”"
            parts.append(_svg(plt.gcf(), what))
    return "".join(parts)


# E24-report.md: Tables
def _table(rows: Iterable[tuple[str, Any]]) -> str:
    """Names and values as a table; numbers in a reader's form."""
    each = "".join(
        f"<tr><th>{escape(name)}</th>"
        f"<td>{escape(_plainly(value))}</td></tr>"
        for name, value in rows
    )
    return f"<table>{each}</table>"


def _flat(values: dict[str, Any], above: str = "") -> Iterator[Any]:
    """{"valid": {"nll": 1.2}} -> ("valid nll", 1.2)"""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name} ")
        else:
            yield f"{above}{name}", value


def _plainly(value: Any) -> str:
    """2900000.0 -> 2,900,000; 0.00123456 -> 0.001235"""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "unset"}[value]
    if isinstance(value, (int, float)):
        integer = float(value).is_integer() and abs(value) < 1e15
        return f"{int(value):,}" if integer else f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plainly, value))
    return str(value)


def _facts(run: Run) -> list[tuple[str, Any]]:
    """The model in numbers: size, and what a step costs."""
    config, batch = run.model.config, run.recipe.training.batch_tokens
    count = sum(weight.numel() for weight in run.model.parameters())
    return [
        ("parameters", count),
        ("source vocabulary", config.src_vocab),
        ("target vocabulary", config.tgt_vocab),
        ("tokens in a batch, each side", batch),
        ("operations of a step", f"{step_flops(config, batch):.2g}"),
    ]


def _settings(run: Run) -> str:
    """Every field of the recipe; those in bold were changed."""
    usual = RECIPES.get(recipe_name(run) or "", run.recipe).flat()
    cells = []
    for field, value in run.recipe.flat().items():
        text = f"{escape(field)} = {escape(_plainly(value))}"
        changed = value != usual[field]
        text = f"<b>{text}</b>" if changed else text
        cells.append(f"<li>{text}</li>")
    return f'<ul class="settings">{"".join(cells)}</ul>'


def recipe_name(run: Run) -> str | None:
    """The name of the recipe that a run was made with, as far as its
    description tells.
    """
    about = run.recipe.about
    return next((n for n, r in RECIPES.items() if r.about == about), None)


# E24-report.md: The page
_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title><style>
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 52rem;
  margin: 2rem auto; padding: 0 1rem; }
$style</style></head><body>$body</body></html>
""")
_STYLE = """h1 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
h3 { margin: 2rem 0 0; font-weight: 600; }
.faint { opacity: .7; font-size: .85em; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: .15rem 1.5rem .15rem 0;
  font-weight: 400; vertical-align: top; }
td { font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; overflow-x: auto; }
svg { max-width: 100%; height: auto; border-radius: 4px; }
.settings { columns: 16rem; padding-left: 1rem; font-size: .85rem; }
"""


def html_page(title: str, style: str, body: str) -> str:
    """A page for the browser, light or dark, that needs no other file."""
    return _PAGE.substitute(title=escape(title), style=style, body=body)


def report(folder: Path, lines: Sequence[str] | None = None) -> str:
    """A run folder as one page of HTML. Translates lines, or a few of the
    run's own test sentences if its data is here. RunError if it is no run.
    """
    folder = run_folder(folder)
    run = Run.open(folder)
    use_book_style()
    recipe, name = run.recipe, recipe_name(run) or "a run"
    title = f"{name}: {recipe.source} to {recipe.target}"
    parts = [f"<h1>{escape(title)}</h1><p>{escape(recipe.about)}</p>"]
    path = folder / "summary.json"
    if path.is_file():
        try:
            summary = dict(json.loads(path.read_text("utf-8")))
        except (TypeError, ValueError) as error:
            raise RunError(f"{path} is damaged: {error}") from None
        parts += ["<h2>Result</h2>", _table(_flat(summary))]
    parts += ["<h2>Test</h2>", _kept(folder)]
    parts.append("<h2>Training</h2>")
    drawn = _curves(read_metrics(folder))
    what = "Loss, learning rate and gradient norm by step"
    none = "<p>This folder has no log of its training.</p>"
    parts.append(none if drawn is None else _svg(drawn, what))
    pairs = sample_pairs(run) if lines is None else (lines, [])
    if pairs[0]:
        heading = "<h2>Translations</h2>"
        parts += [heading, _LEGEND, _translations(run, *pairs)]
    parts += ["<h2>Model</h2>", _table(_facts(run))]
    parts.append("<h2>Settings</h2>")
    if recipe_name(run):
        parts.append(f"<p>In bold: not as in {escape(name)}.</p>")
    parts.append(_settings(run))
    return html_page(name, _STYLE, "".join(parts))


def _kept(folder: Path) -> str:
    """What evaluate --keep has left in the folder."""
    if not (folder / SCORES).is_file():
        return (
            "<p>No test set has been scored, nor the two baselines beside "
            f"it: <code>annotated evaluate --run {escape(folder.name)} "
            "--split test --keep</code> does both.</p>"
        )
    return _table(_flat(results_of(folder)))


_LEGEND = (
    "<p>One row per output token, one column per source token. The darker "
    "a cell, the more attention that output token paid to that source "
    "token (last decoder layer, mean of its heads).</p>"
)


def sample_pairs(run: Run, count: int = 4) -> tuple[list[str], list[str]]:
    """The first test sentences of the data that the run was trained on,
    and their references; none if they are not on this machine.
    """
    recipe = run.recipe
    if recipe.data in registry() and prepared_data(recipe) is None:
        return [], []  # nothing is fetched for a report
    try:
        src, tgt = open_data(recipe).text("test")
    except (DataError, UsageError, OSError):
        return [], []
    return src[:count], tgt[:count]
