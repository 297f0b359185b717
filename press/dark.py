"""Colours: from the one file that has them to the pages and drawings.

annotated/book/moving/tokens.json gives each colour twice, for a light page
and for a dark one. Style sheets get them as variables. A drawing of
Matplotlib has been drawn for a light page: it is given variables, too, and
follows the page that it stands on.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from annotated.book.colors import MOVING, colors

HEX = re.compile(r"(?<![\w&])#([0-9a-fA-F]{6})\b")
WORDS = {"white": "#ffffff", "black": "#000000"}
WORD = re.compile(r"\b(fill|stroke)(: ?|=\")(white|black)\b")
Lab = tuple[float, float, float]


def style_sheet() -> str:
    """All colours as variables, and how long what moves takes."""
    day, night = (_variables(colors(dark=x)) for x in (False, True))
    motion = _tokens()["motion"]
    return (
        f"html{{{day}--motion:{motion}}}\n"
        f'html[data-theme="dark"]{{{night}}}\n'
    )


def light(style: str) -> str:
    """A style sheet for readers that know no variables."""
    named = colors()
    return re.sub(r"var\(--([\w-]+)\)", lambda m: named[m[1]], style)


def _variables(named: dict[str, str]) -> str:
    return "".join(f"--{name}:{color};" for name, color in named.items())


def _tokens() -> dict[str, Any]:
    return json.loads((MOVING / "tokens.json").read_text("utf-8"))


def themed(svg: str) -> str:
    """A drawing that is dark on a dark page; itself if it has no colours.

    A browser asks a picture in a page for the scheme of that page.
    """
    svg = WORD.sub(lambda m: f"{m[1]}{m[2]}{WORDS[m[3]]}", svg)
    found = sorted({color.lower() for color in HEX.findall(svg)})
    start = re.search(r"<svg\b[^>]*>", svg)
    if not found or start is None:
        return svg
    names = {color: f"--c{i:x}" for i, color in enumerate(found)}
    body = HEX.sub(
        lambda m: f"var({names[m[1].lower()]})", svg[start.end() :]
    )
    light = ";".join(f"{names[c]}:#{c}" for c in found)
    dark = ";".join(f"{names[c]}:{darkened('#' + c)}" for c in found)
    ink = colors(dark=True)["ink"]
    return (
        f"{svg[: start.end()]}<style>svg{{{light}}}"
        f"@media (prefers-color-scheme:dark){{svg{{{dark};fill:{ink}}}"
        "image{filter:invert(1) hue-rotate(180deg)}}</style>"
        f"{body}"
    )


@cache
def darkened(color: str) -> str:
    """What a colour of a light page is on a dark one: what the tokens
    say; between them their lightness is turned around, and the nearest
    tokens pull.
    """
    here = _lab(color)
    turned = _turned(here)
    total, moved = 1.0, [0.0, 0.0, 0.0]
    for one, other in _pairs():
        far = sum((a - b) ** 2 for a, b in zip(here, one, strict=True))
        if far < 1e-9:
            return _hex(other)
        pull = 1 / (1e5 * far**2)
        total += pull
        for i, (a, b) in enumerate(zip(other, _turned(one), strict=True)):
            moved[i] += pull * (a - b)
    light, a, b = (
        x + y / total for x, y in zip(turned, moved, strict=True)
    )
    return _hex((light, a, b))


@cache
def _pairs() -> list[tuple[Lab, Lab]]:
    groups = _tokens()["colors"]
    rows = [*groups["figure"].values(), *groups["meaning"].values()]
    return [(_lab(light), _lab(dark)) for light, dark, _ in rows]


def _turned(lab: Lab) -> Lab:
    """Lightness upside down: paper is dark, ink is light."""
    depth = max(0.0, 1 - lab[0])
    return 0.22 + 0.7 * depth**0.75, 0.85 * lab[1], 0.85 * lab[2]


# --- OKLab: https://bottosson.github.io/posts/oklab/ ----------------------


def _lab(color: str) -> Lab:
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    r, g, b = (
        x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4
        for x in channels
    )
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (
        1 / 3
    )
    middle = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (
        1 / 3
    )
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (
        1 / 3
    )
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def _hex(lab: Lab) -> str:
    light, a, b = lab
    long = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (light - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    )
    channels = (
        12.92 * x
        if x <= 0.0031308
        else 1.055 * max(x, 0.0) ** (1 / 2.4) - 0.055
        for x in linear
    )
    return "#" + "".join(
        f"{round(255 * min(1.0, max(0.0, x))):02x}" for x in channels
    )
