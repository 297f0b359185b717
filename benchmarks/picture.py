"""The moving picture of README.md: a sentence as it is translated.

    python benchmarks/picture.py                  # writes book/writing.svg

The run that travels with the package translates one sentence of its test
set. Word by word, lines lead to what the last layer of the decoder looked
at, the mean of its heads; a line is as strong as the weight. Where nothing
moves (in print, or if somebody asked for less motion) all of it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Annotated

import tyro

from annotated.book.colors import colors
from annotated.engine.runs import Run, run_folder
from annotated.search import alignment

OUT = Path(__file__).resolve().parents[1] / "book" / "writing.svg"
SENTENCE = "Heute kauft diese junge Ärztin nicht ein , obwohl Anna nicht müde war ."
LETTER, GAP, MARGIN = 8.3, 15, 16  # pixels: of a letter, between two words
ABOVE, BELOW, HEIGHT = 44, 150, 180  # where the two lines of text stand
BEAT, REST = 0.9, 3.0  # seconds: for each word, and at the end
FAINT = 0.08  # weights below it are not drawn

LIGHT, DARK = colors(), colors(dark=True)
STYLE = f"""\
text {{ font: 15px ui-sans-serif, system-ui, sans-serif; fill: {LIGHT["ink"]} }}
path {{ fill: none; stroke: {LIGHT["decoder"]}; stroke-linecap: round }}
rect {{ fill: {LIGHT["decoder"]} }}
.paper {{ fill: {LIGHT["ground"]} }}
@media (prefers-color-scheme: dark) {{
  text {{ fill: {DARK["ink"]} }} path {{ stroke: {DARK["decoder"]} }}
  rect {{ fill: {DARK["decoder"]} }} .paper {{ fill: {DARK["ground"]} }}
}}
.word, .look {{ animation: 0s step-end infinite }}
@media (prefers-reduced-motion: reduce) {{
  .word, .look {{ animation: none !important }}
}}"""


def looked(
    line: str, run: str = "pocket"
) -> tuple[list[str], list[str], list[list[float]]]:
    """Words of the line and of its translation, and how much each of these
    looked at each of those.
    """
    opened = Run.open(run_folder(Path(run)))
    [[best]] = opened.translate([line])
    [src] = opened.source.encode([line])
    [tgt] = opened.target.encode([best.text])
    weights = alignment(opened.model, src, tgt)[-1].mean(0)
    rows = weights[: len(tgt), : len(src)].tolist()
    rounded = [[round(weight, 2) for weight in row] for row in rows]
    return opened.source.tokens(src), opened.target.tokens(tgt), rounded


def middles(words: Sequence[str], width: float) -> list[float]:
    """Where each word of a line of text stands that is centred."""
    sizes = [LETTER * len(word) + GAP for word in words]
    x, found = (width - sum(sizes)) / 2, []
    for size in sizes:
        found.append(x + size / 2)
        x += size
    return found


def frames(name: str, *changes: tuple[float, float]) -> str:
    """A CSS animation: at each time, a part of 1, the opacity from then."""
    steps = " ".join(
        f"{100 * t:.2f}% {{ opacity: {o:g} }}" for t, o in changes
    )
    return f"@keyframes {name} {{ {steps} }}"


def picture(
    source: Sequence[str],
    target: Sequence[str],
    weights: Sequence[Sequence[float]],
) -> str:
    """The two sentences as an SVG that writes the second, word by word."""
    lengths = [
        sum(LETTER * len(word) + GAP for word in words)
        for words in (source, target)
    ]
    width = max(lengths) + 2 * MARGIN
    below, above = middles(source, width), middles(target, width)
    whole = BEAT * (len(target) + 0.5) + REST
    css, drawn = [STYLE], []
    for i, word in enumerate(target):
        start = BEAT * (i + 0.5) / whole
        end = BEAT * (i + 1.5) / whole
        last = BEAT * (len(target) + 0.5) / whole
        css.append(frames(f"w{i}", (0, 0), (start, 1)))
        looks = [(0.0, 0.0), (start, 1.0), (end, 0.0), (last, 0.35)]
        if i == len(target) - 1:
            looks.pop(2)
        css.append(frames(f"l{i}", *looks))
        time = f"{whole:.1f}s"
        lines = []
        for j, weight in enumerate(weights[i]):
            if weight < FAINT:
                continue
            size = LETTER * len(source[j]) + 8
            lines.append(
                f'<path d="M{above[i]:.0f} {ABOVE + 8}C{above[i]:.0f} '
                f"{ABOVE + 60} {below[j]:.0f} {BELOW - 72} {below[j]:.0f} "
                f'{BELOW - 22}" stroke-width="{1 + 4 * weight:.1f}" '
                f'stroke-opacity="{weight:g}"/>'
                f'<rect x="{below[j] - size / 2:.0f}" y="{BELOW - 19}" '
                f'width="{size:.0f}" height="26" rx="5" '
                f'fill-opacity="{weight / 2:g}"/>'
            )
        drawn.append(
            f'<g class="look" style="animation-name:l{i};'
            f'animation-duration:{time}">{"".join(lines)}</g>'
            f'<text class="word" style="animation-name:w{i};'
            f'animation-duration:{time}" x="{above[i]:.0f}" y="{ABOVE}" '
            f'text-anchor="middle">{escape(word)}</text>'
        )
    under = "".join(
        f'<text x="{x:.0f}" y="{BELOW}" text-anchor="middle">{escape(word)}'
        "</text>"
        for x, word in zip(below, source, strict=True)
    )
    most = [max(zip(row, source)) for row in weights]
    told = "; ".join(
        f"{word} looks most at {at}, {weight:.0%}"
        for word, (weight, at) in zip(target, most, strict=True)
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" '
            f'viewBox="0 0 {width:.0f} {HEIGHT}" width="{width:.0f}">',
            f"<title>{escape(' '.join(source))} — {escape(' '.join(target))}"
            "</title>",
            f"<desc>{escape(told)}</desc>",
            f"<style>{chr(10).join(css)}</style>",
            '<rect class="paper" width="100%" height="100%" rx="8"/>',
            under,
            *drawn,
            "</svg>\n",
        ]
    )


def main(
    line: Annotated[str, tyro.conf.Positional] = SENTENCE,
    run: str = "pocket",
    out: Path = OUT,
) -> None:
    """Translate a line by a run, and draw it."""
    out.write_text(picture(*looked(line, run)), "utf-8")
    print(f"wrote {out}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
