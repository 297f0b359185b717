"""The font of formulas: a cut of STIX Two Math for this book.

`python -m press.cut STIXTwoMath-Regular.ttf` makes
book/_static/fonts/book-math.woff2 (with `pip install fonttools brotli`; the
font is in the package ziamath, for example). The font's licence, the SIL
Open Font License 1.1, reserves no name; still the cut has one of its own,
for it is no longer the same:

- it has the letters and signs that formulas use, in all their sizes;
- fractions in a line of text stand as close as in TeX, and their lines are
  as thin as the font's own;
- a root is as wide for high formulas as for low ones. Chromium reserves
  the width of the widest one for all, which leaves a hole after them.
"""

from __future__ import annotations

import string
import sys
from pathlib import Path
from typing import Any

OUT = Path("book/_static/fonts/book-math.woff2")
GREEK = "αβγδεζηθικλμνξοπρςστυφχψωϑϕϖϱϵΓΔΘΛΞΠΣΥΦΨΩ"
SIGNS = (
    "\xa0ıȷ¬±·×÷ˆˇˉ˘˙˚˜ ̂̃̄–—‘’“”…′″‖\u2061\u2062ℏℓ←→↑↓↔⇒⇐⇔↦⟵⟶∀∂∃∅∇∈∉∏∑−∓∗∘√∝"
    "∞∣∥∧∨∩∪∫∶∼≈≃≅≠≡≤≥≪≫⊂⊆⊕⊗⊙⊤⊥⋅⋯⋮⋱⌈⌉⌊⌋⟨⟩⏞⏟"
)
BLOCKS = (
    (0x20, 0x7F),
    (0x1D400, 0x1D468),  # bold, italic, and h
    (0x210E, 0x210F),
    (0x1D538, 0x1D56C),  # double-struck, of which some are elsewhere
    (0x1D6A4, 0x1D6A6),  # dotless
    (0x1D6E2, 0x1D71C),  # Greek italic
)
STRUCK = "ℂℍℕℙℚℝℤ"
CONSTANTS = {
    "FractionNumeratorShiftUp": 420,
    "FractionDenominatorShiftDown": 370,
    "FractionRuleThickness": 54,
    "RadicalRuleThickness": 54,
}
ROOT = 0x221A


def characters() -> set[int]:
    found = {ord(c) for c in GREEK + SIGNS + STRUCK + string.ascii_letters}
    for first, last in BLOCKS:
        found |= set(range(first, last))
    return found


def cut(path: Path, out: Path) -> None:
    from fontTools import subset
    from fontTools.ttLib import TTFont

    font = TTFont(path)
    options = subset.Options(
        flavor="woff2", hinting=False, layout_features=["ssty", "kern"],
        name_IDs=["*"], notdef_outline=True,
    )  # fmt: skip
    maker = subset.Subsetter(options)
    maker.populate(unicodes=characters())
    maker.subset(font)
    constants = font["MATH"].table.MathConstants
    for name, value in CONSTANTS.items():
        getattr(constants, name).Value = value
    _narrow(font)
    for record in font["name"].names:
        if record.nameID in {1, 3, 4, 6, 16}:
            space = "" if record.nameID == 6 else " "
            record.string = f"Book{space}Math"
    font.flavor = "woff2"
    out.parent.mkdir(parents=True, exist_ok=True)
    font.save(out)


def _narrow(font: Any) -> None:
    """All forms of the root as wide as the first."""
    first = font.getBestCmap()[ROOT]
    variants = font["MATH"].table.MathVariants
    place = variants.VertGlyphCoverage.glyphs.index(first)
    forms = variants.VertGlyphConstruction[place]
    names = {r.VariantGlyph for r in forms.MathGlyphVariantRecord}
    if forms.GlyphAssembly is not None:
        names |= {part.glyph for part in forms.GlyphAssembly.PartRecords}
    wanted = font["hmtx"][first][0]
    for name in names - {first}:
        width, left = font["hmtx"][name]
        scale = wanted / width
        glyph = font["glyf"][name]
        glyph.coordinates.scale((scale, 1))
        glyph.coordinates.toInt()
        glyph.recalcBounds(font["glyf"])
        font["hmtx"][name] = wanted, round(left * scale)


if __name__ == "__main__":
    cut(Path(sys.argv[1]), OUT)
    print(f"wrote {OUT}: {OUT.stat().st_size:,} bytes")
