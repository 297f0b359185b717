"""Posters: what of a hidden figure may be seen, its empty axes.

A cell tagged `poster` hides its figure like any prediction, but axes,
labels, titles and legend stand there to be drawn in. They are the figure
itself, without what Matplotlib has drawn inside the axes. A line of
reference stays if it has `gid="reference"`.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from annotated.book.colors import colors
from press import letters

SVG = "http://www.w3.org/2000/svg"
GROUP = f"{{{SVG}}}g"
# what stays of an axes: ticks and labels, the legend, its own patches
FRAME = re.compile(r"matplotlib\.axis_\d+|legend_\d+|reference")
FIELD = "stroke-width: 0.8; stroke-dasharray: 2.5 2.5; stroke: "
FIELD += colors()["faint"]
SIZE = re.compile(r'\bwidth="([\d.]+)pt" height="([\d.]+)pt"')
EMPTY = "The axes of the figure, still empty."


def poster(svg: str) -> str:
    """The picture without what is drawn inside its axes."""
    for prefix, name in (
        ("", SVG),
        ("xlink", "http://www.w3.org/1999/xlink"),
    ):
        ET.register_namespace(prefix, name)
    root = ET.fromstring(svg)
    for axes in root.iter(GROUP):
        if re.fullmatch(r"axes_\d+", axes.get("id", "")):
            _clear(axes)
    return ET.tostring(root, encoding="unicode")


def _clear(axes: ET.Element) -> None:
    ground = axes[0]
    if not ground.get("id", "").startswith("patch_"):  # axes that are off
        for part in list(axes):
            axes.remove(part)
        return
    for path in ground:  # a frame to be drawn in
        path.set("style", f"{path.get('style', '')}; {FIELD}")
    top = _top(ground)
    for part in list(axes)[1:]:
        name = part.get("id", "")
        own = (
            FRAME.fullmatch(name) or _is_spine(part) or _is_title(part, top)
        )
        if not own:
            axes.remove(part)
            axes.extend(part.iter(f"{{{SVG}}}defs"))  # the legend's markers


def _is_spine(part: ET.Element) -> bool:
    """A line of the frame: a patch with square ends and no area."""
    styles = [path.get("style", "") for path in part]
    clipped = any("clip-path" in path.attrib for path in part)
    named = part.get("id", "").startswith("patch_")
    empty = all(
        "fill: none" in style and "linecap: square" in style
        for style in styles
    )
    return named and empty and not clipped


def _top(background: ET.Element) -> float:
    """The y of the axes' upper edge."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", background[0].get("d", "0 0"))
    return min(map(float, numbers[1::2]))


def _is_title(part: ET.Element, top: float) -> bool:
    """A text above the axes."""
    if not part.get("id", "").startswith("text_"):
        return False
    places = []
    for text in part.iter(f"{{{SVG}}}text"):
        moved = re.search(r"translate\(\S+ ([\d.]+)\)", str(text.attrib))
        turned = re.search(r"rotate\(\S+ \S+ ([\d.]+)\)", str(text.attrib))
        found = moved or turned
        places.append(float(found[1] if found else text.get("y", "inf")))
    return bool(places) and max(places) < top


def image(svg: str, path: str) -> str:
    """The poster, which is at `path`, as an element of a page."""
    size = SIZE.search(svg[:2000])
    room = ""
    if size:  # so that nothing moves when it comes
        width, height = (round(float(x) * 4 / 3) for x in size.groups())
        room = f' width="{width}" height="{height}"'
    look = letters.look(svg)
    look = f' class="{look}"' if look else ""
    return (
        f'<p class="poster"><img{look} alt="{EMPTY}" src="{path}"{room} '
        'loading="lazy"></p>'
    )
