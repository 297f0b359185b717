"""Formulas as MathML, which browsers and e-readers set by themselves.

Docutils translates the TeX. It knows the commands, but not how far apart
signs stand: in `\\log n`, in `-1` after a comma, in an exponent, nor that
the hat of `\\hat y_i` belongs to its letter alone. This is mended here,
for the pages, the EPUB, the PDF and the slides.
"""

from __future__ import annotations

import base64
import html
import re
import unicodedata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

from press.cut import characters

# what press/cut.py makes of STIX Two Math
FILE = "book-math.woff2"
FONT = characters()
# what book.css and epub.css say of formulas, too
STYLE = """
math {
  font-family: "Book Math", "STIX Two Math", "Latin Modern Math", math;
}
math mtd:first-child { padding-inline-start: 0; }
math mtd:last-child { padding-inline-end: 0; }
mtable.ams-align > mtr > mtd { padding-inline: 0; }
mtable.ams-align > mtr > mtd:nth-child(2n) { text-align: left; }
mtable.ams-align > mtr > mtd:nth-child(2n+1) { text-align: right; }
mtable.cases > mtr > mtd { text-align: left; }
"""

# what docutils does not know, or reads otherwise, in words that it does
SAME = [
    (re.compile(r"\\dots(?![a-z])"), r"\\ldots "),
    (re.compile(r"\\([bB]ig)(?=[\]).|])"), r"\\\1r"),
    (re.compile(r"\\([bB]ig)(?![a-z])"), r"\\\1l"),
    (re.compile(r"\\(t?frac)(\w)(\w)"), r"\\\1{\2}{\3}"),
    (re.compile(r"\\\\\[[^\]]*\]"), r"\\\\ "),  # more room below a line
    # a comma parts numbers, unless it is in braces
    (re.compile(r",(?=\d)"), ", "),
    (re.compile(r"(?<=\d)\{,\}\s*(?=\d)"), ","),
]
SPACE = "http://www.w3.org/1998/Math/MathML"
MATH = f"{{{SPACE}}}"
# XML has five, of which a formula needs three
ENTITY = re.compile(r"&(?!lt;|gt;|amp;)\w+;")
# what MathML 3, which EPUB has, allows elsewhere only
SIZES = re.compile(r' (?:displaystyle|scriptlevel)="[^"]*"')

ACCENTS = set("´ˉ˘ˇ˙¨`ˆ˚~→")
OPEN, CLOSE = set("([{⟨⌊⌈"), set(")]}⟩⌋⌉")
FENCES = {"‖", "⌊", "⌋", "⌈", "⌉", "|"}
# after these a minus belongs to the number that it precedes
BEFORE = OPEN | set("=≈≤≥<>≠←→↦∈∣|,;⋅×+−±/∼≪≫∝")
# the space around what TeX takes for a letter, and around dots
ROOM = dict.fromkeys("/.|!′", "0") | {"⋯": "0.1667em"}
ALONE = set("⋅×⊙…")
THIN = "0.1667em"
BESIDE = "0.1em"  # of a fraction
APPLY = "\u2061"  # invisible: a function is applied
LIMITS = {"max", "min", "sup", "inf", "lim"}
SCRIPTS = {
    "msub": 1, "msup": 1, "msubsup": 1,
    "munder": 1, "mover": 1, "munderover": 1,
}  # fmt: skip

# letters whose italics have other names
SLANTED = dict(zip("hıȷ∂∇ϵϑϰϕϱϖ", "ℎ𝚤𝚥𝜕𝛻𝜖𝜗𝜘𝜙𝜚𝜛"))

log = logging.getLogger(__name__)


def mathml(tex: str, block: bool = False, source: bool = False) -> str:
    """A formula as MathML, which carries its TeX if `source`; MathError for
    a command that docutils does not know.
    """
    text = tex
    for pattern, other in SAME:
        text = pattern.sub(other, text)
    made: str = tex2mathml(text, as_block=block)
    made = ENTITY.sub(lambda match: html.unescape(match[0]), made)
    tree = ET.fromstring(re.sub(r">\s+<", "><", made))
    _mend(tree)
    if source:
        _carry(tree, tex)
    ET.register_namespace("", SPACE)  # one for all: posters have another
    return ET.tostring(tree, encoding="unicode")


def third(text: str) -> str:
    """The same as MathML 3 allows it."""
    return SIZES.sub("", text)


def signs(text: str) -> set[str]:
    """The characters that a font has to have for a formula: a letter alone
    is shown as the mathematical italic of its name.
    """
    found: set[str] = set()
    for each in ET.fromstring(text).iter():
        word = each.text or ""
        if _kind(each) == "annotation":
            continue
        alone = _kind(each) == "mi" and len(word) == 1
        if alone and each.get("mathvariant") != "normal":
            word = _italic(word)
        found |= set(word) - {"\u2061", "\u2062", "\u202f", "\xa0"}
    return found


def _italic(letter: str) -> str:
    if letter in SLANTED:
        return SLANTED[letter]
    name = unicodedata.name(letter, "")
    plain = re.fullmatch(r"(?:LATIN|GREEK) (\w+) LETTER (\w+)", name)
    if plain is None:
        return letter
    return unicodedata.lookup(f"MATHEMATICAL ITALIC {plain[1]} {plain[2]}")


def face(root: Path) -> str:
    """A rule of CSS that holds the font, for pages that load nothing."""
    path = root / "book" / "_static" / "fonts" / FILE
    if not path.is_file():
        return ""
    data = base64.b64encode(path.read_bytes()).decode()
    return (
        '@font-face { font-family: "Book Math"; '
        f"src: url(data:font/woff2;base64,{data}); }}"
    )


# --- what docutils leaves to do -------------------------------------------


def _kind(each: ET.Element) -> str:
    return each.tag.removeprefix(MATH)


def _carry(tree: ET.Element, tex: str) -> None:
    """How the formula is written, for the search and for who copies it."""
    parts = list(tree)
    row = parts[0]
    if len(parts) > 1:
        row = ET.Element(f"{MATH}mrow")
        row.extend(parts)
    for each in parts:
        tree.remove(each)
    both = ET.SubElement(tree, f"{MATH}semantics")
    both.append(row)
    kind = {"encoding": "application/x-tex"}
    note = ET.SubElement(both, f"{MATH}annotation", kind)
    note.text = " ".join(tex.split())


def _mend(tree: ET.Element) -> None:
    for each in tree.iter():
        if "capital-greek" in each.get("class", ""):
            each.set("mathvariant", "normal")  # as TeX sets it
        if "ams-align" in each.get("class", ""):
            each.set("displaystyle", "true")
    for parent in tree.iter():
        for place, child in enumerate(parent):
            if (other := _hat(child)) is not None:
                parent[place] = other
            elif _kind(child) in {"msub", "msup"} and _is_brace(child[0]):
                under = _kind(child) == "msub"  # what the brace is for
                child.tag = MATH + ("munder" if under else "mover")
        if _kind(parent) == "mi" and parent.text == "…":
            parent.tag = f"{MATH}mo"
    for parent in list(tree.iter()):
        if _kind(parent) in {"math", "mrow", "mtd", "msqrt"}:
            _part_signs(parent)
            _part_functions(parent)
            _part_fractions(parent)
        if _kind(parent) == "msqrt":  # a root is as high as a letter
            parent.append(_room(width="0", height="0.7em", depth="0.1em"))
    for hat in tree.iter(f"{MATH}mover"):
        if (hat[1].text or "") in ACCENTS:  # clear of its letter
            _lift(hat)
    for sign in tree.iter(f"{MATH}mo"):
        if sign.text == "'":
            sign.text = "′"
        if (sign.text or "") in ROOM:
            room = ROOM[sign.text or ""]
            sign.attrib.update(lspace=room, rspace=room)
    for parent in tree.iter():
        if _kind(parent) in SCRIPTS:
            _draw_together(parent)


def _room(**size: str) -> ET.Element:
    return ET.Element(f"{MATH}mspace", size)


def _hat(each: ET.Element) -> ET.Element | None:
    """`\\hat y_i`: the index belongs to the letter with its hat."""
    if _kind(each) != "munderover" or len(each) != 3:
        return None
    base, index, accent = each
    if (accent.text or "") not in ACCENTS:
        return None
    whole = ET.Element(f"{MATH}msub")
    hat = ET.SubElement(whole, f"{MATH}mover", accent="true")
    hat.extend([base, accent])
    whole.append(index)
    return whole


def _lift(hat: ET.Element) -> None:
    letter = hat[0]
    row = ET.Element(f"{MATH}mrow")
    high = (letter.text or "x")[0] in "bdfhklt" or letter.text != (
        letter.text or ""
    ).lower()
    row.extend(
        [letter, _room(width="0", height=f"{0.78 if high else 0.6}em")]
    )
    hat[0] = row


def _is_brace(each: ET.Element) -> bool:
    return len(each) == 2 and (each[1].text or "") in {"⏟", "⏞"}


def _part_signs(row: ET.Element) -> None:
    """A minus before a number, and fences that do not grow: those between
    `\\left` and `\\right` have a row of their own.
    """
    parts = list(row)
    for place, each in enumerate(parts):
        if _kind(each) != "mo":
            continue
        if each.text in {"−", "+", "±"}:
            before = _edge(parts[:place], -1)
            sign = before is not None and _kind(before) == "mo"
            if before is None or (sign and (before.text or "") in BEFORE):
                each.attrib.update(form="prefix", lspace="0", rspace="0")
        if each.text in ALONE:
            _part_sign(each, parts[:place], parts[place + 1 :])
    for place, each in enumerate(parts):
        fence = each
        while _kind(fence) in SCRIPTS:
            fence = fence[0]
        ends = _kind(row) == "mrow" and place in {0, len(parts) - 1}
        if (fence.text or "") in FENCES and not (
            (ends and fence is each) or fence.get("minsize")
        ):
            first = fence.attrib.pop("class", "") == "mathopen"
            fence.set("stretchy", "false")
            if fence.text != "|":
                form = "prefix" if first else "postfix"
                fence.attrib.update(form=form, lspace="0", rspace="0")


def _part_sign(
    sign: ET.Element, before: list[ET.Element], after: list[ET.Element]
) -> None:
    """A sign that may stand for itself, as in `max(0, ·)`, and dots."""
    left, right = _edge(before, -1), _edge(after, 0)
    if sign.text == "…":
        sides = ("lspace", left), ("rspace", right)
        for side, other in sides:
            near = other is not None and _is_word(other)
            sign.set(side, THIN if near else "0")
        return
    lonely = left is None or left.text in OPEN | {","}
    if lonely or right is None or right.text in CLOSE | {","}:
        sign.attrib.update(lspace="0", rspace="0")
    elif sign.text == "⊙":  # it is wide
        sign.attrib.update(lspace="0.28em", rspace="0.28em")


def _part_functions(row: ET.Element) -> None:
    """A thin space between a function's name and a letter or number."""
    parts = list(row)
    for place, each in enumerate(parts):
        name = _function(each)
        if name is None:
            continue
        if _kind(name) == "mo":  # else it counts as a sign between numbers
            name.attrib.update(lspace="0", rspace="0")
        before = _edge(parts[:place], -1)
        rest = parts[place + 1 :]
        if rest and rest[0].text == APPLY:
            row.remove(rest[0])  # a space says as much
            rest = rest[1:]
        after = _edge(rest, 0)
        at = list(row).index(each)
        if after is not None and _is_word(after):
            row.insert(at + 1, _room(width=THIN))
        elif after is not None:
            row.insert(at + 1, _sign(APPLY))
        if before is not None and (
            _is_word(before) or before.text in CLOSE
        ):
            row.insert(at, _room(width=THIN))


def _part_fractions(row: ET.Element) -> None:
    for each in [x for x in row if _kind(x) == "mfrac"]:
        for after in (1, 0):
            row.insert(list(row).index(each) + after, _room(width=BESIDE))


def _sign(text: str) -> ET.Element:
    sign = ET.Element(f"{MATH}mo")
    sign.text = text
    return sign


def _edge(parts: list[ET.Element], end: int) -> ET.Element | None:
    """The sign or letter with which some parts end, or begin."""
    if not parts:
        return None
    each = parts[end]
    while _kind(each) == "mrow" and len(each):
        each = each[end]
    return each


def _is_word(each: ET.Element) -> bool:
    """Whether it is a letter, a number or what is made of them: neither a
    sign nor a space.
    """
    return _kind(each) not in {"mo", "mspace"}


def _function(each: ET.Element) -> ET.Element | None:
    """The name in what stands for a function: `log`, with its base or
    without.
    """
    name = each
    while _kind(name) in SCRIPTS:
        name = name[0]
    text = name.text or ""
    if _kind(name) == "mo":
        return name if text in LIMITS else None
    whole = _kind(name) == "mi" and len(text) > 1 and text.isascii()
    return name if whole else None


def _draw_together(scripts: ET.Element) -> None:
    """In an index or an exponent signs stand close."""
    for part in list(scripts)[1:]:
        for sign in part.iter(f"{MATH}mo"):
            if sign.get("stretchy") != "true":
                sign.attrib.setdefault("lspace", "0")
                sign.attrib.setdefault("rspace", "0")


# --- on the pages ---------------------------------------------------------


def check(app: Sphinx, page: nodes.document) -> None:
    """Tell what cannot be set as soon as a page is read."""
    for kind in (nodes.math, nodes.math_block):
        for node in page.findall(kind):
            try:
                shown = signs(mathml(node.astext()))
            except MathError as error:
                log.warning(f"a formula: {error}", location=node)
                continue
            missing = [s for s in sorted(shown) if ord(s) not in FONT]
            if missing:
                log.warning(
                    f"the font of formulas has no {' '.join(missing)}: "
                    "see press/cut.py",
                    location=node,
                )


def _set(self: Any, node: nodes.Element, block: bool) -> None:
    tag = "div" if block else "span"
    self.body.append(self.starttag(node, tag, "", CLASS="math"))
    if number := node.get("number"):
        self.body.append(f'<span class="eqno">({number})</span>')
    self.body.append(_shown(node.astext(), block, self.builder.name))
    self.body.append(f"</{tag}>" + "\n" * block)
    raise nodes.SkipNode


def _shown(tex: str, block: bool, builder: str) -> str:
    try:
        if builder == "epub":
            return third(mathml(tex, block))
        return plain(mathml(tex, block, source=True))
    except MathError:  # it has been told
        return f"<code>{html.escape(tex)}</code>"


def plain(text: str) -> str:
    """The same for HTML, which knows where MathML begins."""
    return text.replace(f' xmlns="{SPACE}"', "")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer(
        "mathml",
        (lambda self, node: _set(self, node, False), None),
        (lambda self, node: _set(self, node, True), None),
    )
    app.connect("doctree-read", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
