"""Pictures for links to pages: a figure of the page below its title.

Other sites show them where somebody shares a link (`og:image`), and want
whole addresses: there are none as long as nobody knows the site's.
"""

from __future__ import annotations

import hashlib
import io
import textwrap
from pathlib import Path

import matplotlib as mpl
import resvg_py
from PIL import Image, ImageDraw, ImageFont

from annotated.book.colors import colors
from press import files
from press.project import TITLE

SIZE = WIDTH, HEIGHT = 1200, 630
EDGE = 56
PAPER, INK, QUIET, COLOUR = map(
    colors().__getitem__, ("paper", "ink", "soft", "link")
)
LINE = 72  # characters of the promise in a line
COLOURS = 128  # a drawing has no more, and takes a third of the bytes
FOLDER = "_static/previews"
FONT = "_static/fonts/source-serif-4-latin-wght-normal.woff2"


def path(name: str) -> str:
    """Where the picture of a page is in the site."""
    return f"{FOLDER}/{name}.png"


def preview(
    root: Path,
    title: str,
    promise: str,
    figure: str,
    size: tuple[int, int] = SIZE,
) -> bytes:
    """The picture of a page, as PNG; the figure is SVG. It is drawn once,
    and then lies in build/.
    """
    data = repr((title, promise, figure, size)).encode()
    name = hashlib.sha256(Path(__file__).read_bytes() + data).hexdigest()
    place = root / "build" / "previews" / f"{name}.png"
    if not place.is_file():
        files.replace(place, _draw(root, title, promise, figure, size))
    return place.read_bytes()


def _draw(
    root: Path, title: str, promise: str, figure: str, size: tuple[int, int]
) -> bytes:
    image = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(image)
    letters = 60
    while _font(root, letters, 600).getlength(title) > size[0] - 2 * EDGE:
        letters -= 2
    top = EDGE - 16
    draw.text((EDGE, top), title, INK, _font(root, letters, 600))
    top += 76
    for line in textwrap.wrap(promise, LINE):
        draw.text((EDGE, top), line, QUIET, _font(root, 30, 400))
        top += 38
    foot = size[1] - EDGE + 14
    if title != TITLE:
        draw.text((EDGE, foot), TITLE, COLOUR, _font(root, 26, 600), "ls")
        foot -= 40
    _place(image, figure, (EDGE, top + 18, size[0] - EDGE, foot))
    file = io.BytesIO()
    image.quantize(COLOURS).save(file, "png", optimize=True)
    return file.getvalue()


def _font(root: Path, size: int, weight: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.truetype(root / "book" / FONT, size)
    font.set_variation_by_axes([weight])
    return font


def _place(
    image: Image.Image, figure: str, box: tuple[int, int, int, int]
) -> None:
    """The figure in the middle of a box, as large as it fits."""
    left, top, right, bottom = box
    png = _drawn(figure, right - left)
    drawn = Image.open(io.BytesIO(png)).convert("RGB")
    ground = drawn.getpixel((0, 0))
    ImageDraw.Draw(image).rounded_rectangle(box, 10, ground)
    wide, high = right - left - 32, bottom - top - 24
    part = min(wide / drawn.width, high / drawn.height)
    size = round(part * drawn.width), round(part * drawn.height)
    small = drawn.resize(size, Image.Resampling.LANCZOS)
    place = (left + right - size[0]) // 2, (top + bottom - size[1]) // 2
    image.paste(small, place)


def _drawn(figure: str, width: int) -> bytes:
    """As PNG, with Matplotlib's own letters: the same on all machines."""
    fonts = Path(mpl.get_data_path()) / "fonts" / "ttf"
    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=figure,
            width=width,
            background=colors()["ground"],
            dpi=96.0,  # else a point has no size
            skip_system_fonts=True,
            font_dirs=[str(fonts)],
            sans_serif_family="DejaVu Sans",
        )
    )
