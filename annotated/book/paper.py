"""Exported from the book; edit the chapter, then run `make export`."""

import json
import re
import textwrap
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from html import escape, unescape
from html.parser import HTMLParser
from http.client import HTTPException
from importlib import resources
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement

from annotated.corpora.fetch import AGENT, PATIENCE
from annotated.corpora.reading import text_of
from annotated.corpora.registry import data_folder
from annotated.engine.errors import DataError, UsageError, unknown
from annotated.engine.files import write_text

__all__ = [
    "VOID", "Reader", "kinds", "inside", "KEPT", "MATHML", "PASSING",
    "FONTS", "DROPPED", "LABELS", "DISPLAYS", "shown", "formulas", "mark",
    "BLOCKS", "plain", "wrapped", "SECTION", "CAPTION", "BODY", "Split",
    "plain_title", "run_in", "SOURCES", "TITLE", "MISSING", "copy_path",
    "keep", "fetched", "NUMBERED", "counted", "split", "whole_sections",
    "Words", "words", "said", "CARD", "ORDER", "KIND", "named", "script",
    "put_beside",
]  # fmt: skip


# E28-paper.md: A page as a tree
VOID = {"br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}


class Reader(HTMLParser):
    """The elements of a page, in `root`."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("html")
        self.open = [self.root]

    def handle_starttag(
        self, tag: str, attrs: list[tuple[str, str | None]]
    ) -> None:
        """One element more, inside those that are open."""
        given = {name: value or "" for name, value in attrs}
        element = SubElement(self.open[-1], tag, given)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        """Close the element, and what was left open inside it."""
        if any(element.tag == tag for element in self.open[1:]):
            while self.open.pop().tag != tag:
                pass

    def handle_data(self, data: str) -> None:
        """Text belongs behind what came last."""
        last = self.open[-1]
        if len(last):
            last[-1].tail = (last[-1].tail or "") + data
        else:
            last.text = (last.text or "") + data


def kinds(element: Element) -> set[str]:
    """Its classes, without the prefix of LaTeXML."""
    names = element.get("class", "").split()
    return {name.removeprefix("ltx_") for name in names}


def inside(element: Element, kind: str) -> Element | None:
    """The first element of a kind, at any depth."""
    return next((e for e in element.iter() if kind in kinds(e)), None)


# E28-paper.md: What is shown of an element
KEPT = {
    "code", "em", "li", "ol", "p", "strong", "sub", "sup", "table",
    "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
MATHML = {
    "math", "menclose", "mfrac", "mi", "mn", "mo", "mover", "mpadded",
    "mroot", "mrow", "mspace", "msqrt", "mstyle", "msub", "msubsup",
    "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover",
}  # fmt: skip
PASSING = {
    "accent", "colspan", "columnalign", "display", "fence", "mathvariant",
    "rowspan", "separator", "stretchy",
}  # fmt: skip
FONTS = {"font_bold": "strong", "font_italic": "em"}
DROPPED = {
    "annotation", "annotation-xml", "button", "figure", "head", "nav",
    "script", "style", "svg", "template",
}  # fmt: skip
LABELS = {"ERROR", "note_mark", "note_type", "tag_item", "tag_note"}
DISPLAYS = {"equation", "equationgroup"}


def shown(element: Element) -> str:
    """HTML that holds nothing but text, formulas, lists and tables."""
    tag, own = element.tag, kinds(element)
    if tag in DROPPED or own & LABELS:
        return ""
    if "note" in own:
        return f"<sup>{escape(mark(element))}</sup>"
    if own & DISPLAYS:
        rows = formulas(element, shown)
        lines = "".join(f"<div>{row}</div>" for row in rows)
        return f'<div class="equation">{lines}</div>'
    text = escape(element.text or "", quote=False)
    for child in element:
        text += shown(child) + escape(child.tail or "", quote=False)
    tag = next((FONTS[name] for name in FONTS if name in own), tag)
    if tag not in KEPT | MATHML:
        return text
    passing = "".join(
        f' {name}="{escape(value)}"'
        for name, value in element.items()
        if name in PASSING
    )
    return f"<{tag}{passing}>{text}</{tag}>"


def formulas(
    block: Element, show: Callable[[Element], str]
) -> Iterator[str]:
    """Each row of a displayed formula, with its number."""
    rows = [e for e in block.iter() if e.tag == "tr"] or [block]
    for row in rows:
        found = [show(e) for e in row.iter() if e.tag == "math"]
        number = inside(row, "tag_equation")
        if found:
            last = [] if number is None else [show(number).strip()]
            yield " ".join([*found, *last])


def mark(note: Element) -> str:
    """The sign of a footnote."""
    sign = inside(note, "note_mark")
    return "" if sign is None else (sign.text or "").strip()


BLOCKS = {"li", "ol", "p", "table", "tr", "ul"}


def plain(element: Element) -> str:
    """Text, with blank lines between blocks and TeX for formulas."""
    tag, own = element.tag, kinds(element)
    if tag in DROPPED or own & LABELS:
        return ""
    if tag == "math":
        tex = " ".join(element.get("alttext", "").split())
        return f"${tex.removeprefix(chr(92) + 'displaystyle').strip()}$"
    if "note" in own:
        return f"[{mark(element)}]"
    if own & DISPLAYS:
        return "\n\n" + "\n\n".join(formulas(element, plain)) + "\n\n"
    text = " ".join((element.text or "").split("\n"))
    for child in element:
        text += plain(child) + " ".join((child.tail or "").split("\n"))
    if tag in {"td", "th"}:
        return f"{text.strip()} | " if text.strip() else ""
    if tag == "tr":
        text = text.strip().removesuffix(" |")
    return f"\n\n{text}\n\n" if tag in BLOCKS else text


def wrapped(text: str) -> str:
    """Paragraphs of at most 76 columns."""
    blocks = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(textwrap.fill(b, 76) for b in blocks if b)


# E28-paper.md: The parts of the paper
SECTION = re.compile(r"S(\d+)(?:\.SS(\d+))?(?:\.SSS(\d+))?$")
CAPTION = re.compile(r"(fig|table)\w*\s*(\d+)", re.I)
BODY = 4  # the number of the first footnote that is not on the title page


@dataclass
class Split:
    """The parts of the paper: elements, by name."""

    parts: dict[str, list[Element]] = field(default_factory=dict)
    notes: int = 0
    paragraphs: dict[str, int] = field(default_factory=dict)
    display: bool = False  # a formula has just stood alone

    def walk(self, element: Element, section: str = "") -> None:
        """Collect an element's parts, and those inside it."""
        own, name = kinds(element), element.get("id", "")
        if found := SECTION.match(name):
            section = ".".join(filter(None, found.groups()))
        elif own & {"appendix", "bibliography"}:
            section = ""
        elif "abstract" in own:
            section = "abstract"
        if plain_title(element).startswith("Acknowledg"):
            section = "acknowledgements"
        if element.tag == "figure":
            self.figure(element)
        elif "para" in own and section:
            self.paragraph(element, section)
        elif section == "abstract" and element.tag == "p":
            self.add("abstract p1", element)
        else:
            if "paragraph" in own:
                run_in(element)
            for child in element:
                self.walk(child, section)

    def add(self, name: str, element: Element) -> None:
        """One element more for a part."""
        self.parts.setdefault(name, []).append(element)

    def paragraph(self, para: Element, section: str) -> None:
        """A paragraph of a section: its text, formulas and points."""
        text = "".join(plain(e) for e in para if e.tag == "p").strip()
        goes_on = self.display and text[:1].islower()
        before = self.paragraphs.get(section, 0)
        if text and not goes_on:
            self.paragraphs[section] = before = before + 1
        name = f"{section} p{max(1, before)}"
        for block in para:
            own = kinds(block)
            self.display = bool(own & DISPLAYS)
            if own & {"itemize", "enumerate"}:
                points = [e for e in block if "item" in kinds(e)]
                for place, point in enumerate(points, 1):
                    self.add(f"{section} point {place}", point)
                continue
            if self.display:
                tag = inside(block, "tag_equation")
                number = "" if tag is None else plain(tag).strip(" ()")
                formula = f"eq {number}" if number else f"{section} eq"
                self.add(formula, block)
            self.add(name, block)
        self.inner(para)

    def inner(self, para: Element) -> None:
        """Footnotes and figures that stand in a paragraph."""
        for element in para.iter():
            if element.tag == "figure":
                self.figure(element)
            elif "role_footnote" in kinds(element):
                content = inside(element, "note_content")
                if content is not None:
                    self.add(f"fn {BODY + self.notes}", content)
                self.notes += 1

    def figure(self, figure: Element) -> None:
        """A figure's caption, and a table with it."""
        caption = inside(figure, "caption")
        found = caption is not None and CAPTION.match(
            plain(caption).strip()
        )
        if caption is None or not found:
            for child in figure:  # panels with captions of their own
                self.walk(child)
            return
        name = f"{found[1].lower()} {found[2]}"
        if name not in self.parts:
            self.add(name, caption)
            table = inside(figure, "tabular")
            if table is not None:
                self.add(name, table)


def plain_title(element: Element) -> str:
    """The title of a section, if it is one and has one."""
    for child in element:
        if "title" in kinds(child):
            return " ".join(plain(child).split())
    return ""


def run_in(section: Element) -> None:
    """The title of a small section at the start of its first paragraph."""
    first, title = inside(section, "p"), plain_title(section)
    if first is not None and title:
        heading = Element("strong")
        heading.text, heading.tail = title, f" {first.text or ''}"
        first.text = None
        first.insert(0, heading)


# E28-paper.md: The reader's copy
SOURCES = (
    "https://arxiv.org/html/1706.03762v7",
    "https://ar5iv.labs.arxiv.org/html/1706.03762",
)
TITLE = "attention is all you need"
MISSING = "there is no copy of the paper yet: run `annotated paper`"


def copy_path() -> Path:
    """Where the copy is, or will be."""
    return data_folder() / "paper" / "1706.03762.html"


def keep(file: Path | None = None) -> Path:
    """Keep the paper: a file that you have saved, or as arXiv or ar5iv
    have it. DataError if it cannot be had, or is something else.
    """
    text = fetched() if file is None else text_of(file)
    split(text, "what was fetched" if file is None else str(file))
    path = copy_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def fetched() -> str:
    """The page from the first place that has it."""
    for address in SOURCES:
        request = urllib.request.Request(
            address, headers={"User-Agent": AGENT}
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as page:
                return str(page.read().decode("utf-8"))
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)  # of a URLError
            failure = " ".join(str(reason).split())[:120]
    raise DataError(
        f"the paper could not be fetched ({failure}): save {SOURCES[0]} "
        "from your browser, and give the file with --file"
    )


NUMBERED = re.compile(r"(\d(?:\.\d)*) p(\d+)$")


@cache
def counted() -> dict[str, int]:
    """The paragraphs of each numbered section, by the map."""
    file = resources.files("annotated.book") / "paper.json"
    numbers: dict[str, int] = {}
    for part in json.loads(file.read_text("utf-8")):
        if found := NUMBERED.match(part["item"]):
            numbers[found[1]] = int(found[2])
    return numbers


def split(text: str, origin: str) -> dict[str, list[Element]]:
    """The parts of the paper, and its sections, by name. DataError if the
    page is not the paper.
    """
    reader, found = Reader(), Split()
    reader.feed(text)
    found.walk(reader.root)
    title = inside(reader.root, "title_document")
    told = "" if title is None else " ".join(plain(title).split())
    if TITLE not in told.lower():
        named = f"its title is “{told[:60]}”" if told else "it has no title"
        raise DataError(
            f"{origin} is not the paper: {named}; wanted is the HTML of "
            f"{SOURCES[0]}"
        )
    missing = [s for s in counted() if s not in found.paragraphs]
    if missing:
        raise DataError(
            f"{origin} is not the whole paper: it has no section "
            f"{', '.join(missing)}"
        )
    return {**found.parts, **whole_sections(found)}


def whole_sections(found: Split) -> dict[str, list[Element]]:
    """Each section; and its paragraphs, where their count is another."""
    sections: dict[str, list[Element]] = {}
    for section, count in counted().items():
        own = re.compile(rf"{re.escape(section)} (p|point )\d+$")
        whole = [
            e
            for n, part in found.parts.items()
            if own.match(n)
            for e in part
        ]
        sections[section] = whole
        if found.paragraphs[section] != count:
            names = [f"{section} p{n}" for n in range(1, count + 1)]
            sections |= dict.fromkeys(names, whole)
    return sections


@dataclass(frozen=True)
class Words:
    """Parts of the paper: HTML in a notebook, text elsewhere."""

    html: str
    text: str

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<blockquote>{self.html}</blockquote>"


def words(name: str) -> Words:
    """A part of the paper from your copy: "3.2.1", "3.2.1 p4", "eq 1",
    "table 3", "fig 2", "fn 4". DataError without a copy, UsageError for a
    part that the paper does not have.
    """
    path = copy_path()
    if not path.exists():
        raise DataError(MISSING)
    parts = split(text_of(path), str(path))
    exact = re.match(r"(?:fig|table|eq|fn) \d+|.*", name.strip())
    known = exact[0] if exact else ""
    if known not in parts:
        hint = 'name a section (3.2.1), "table 3", "fig 2", "eq 1", "fn 4"'
        raise UsageError(unknown("part of the paper", known, parts, hint))
    return said(parts, [known])


def said(parts: dict[str, list[Element]], names: list[str]) -> Words:
    """Those of the names that there are, one after the other."""
    every = [e for name in names for e in parts.get(name, [])]
    # a formula may be named, and stand in a paragraph that is named too
    found = [*{id(e): e for e in every[::-1]}.values()][::-1]
    html = "".join(f"<div>{shown(e)}</div>" for e in found)
    return Words(html, wrapped("\n\n".join(map(plain, found))))


# E28-paper.md: Beside the cards
CARD = re.compile(
    r'<div class="[^"]*\bpaper\b[^"]*admonition[^"]*">\s*'
    r'<p class="admonition-title">(.*?)</p>',
    re.S,
)
ORDER = ("first", "second", "third")
KIND = {
    "Figure": "fig", "Table": "table", "equation": "eq",
    "footnote": "fn",
}  # fmt: skip


def named(title: str) -> list[str]:
    """The parts that a card's title names: "Paper §3.2.1, paragraph 4, and
    footnote 4" has "3.2.1 p4" and "fn 4".
    """
    section = re.search(r"§(\d(?:\.\d)*)", title)
    own = section[1] if section else ""
    names = []
    if found := re.search(r"paragraphs? (\d)(?: (and|to) (\d))?", title):
        last = int(found[3] or found[1])
        names = [f"{own} p{n}" for n in range(int(found[1]), last + 1)]
    elif found := re.search(rf"({'|'.join(ORDER)}) point", title):
        names = [f"{own} point {ORDER.index(found[1]) + 1}"]
    elif "opening" in title:
        names = [f"{own} p1"]
    if "formula" in title:
        names.insert(0, f"{own} eq")
    numbered = re.findall(rf"({'|'.join(KIND)}) (\d)", title)
    formula = any(kind == "equation" for kind, _ in numbered)
    if own and not names and not formula:
        names = [own]
    if "abstract" in title:
        names.append("abstract p1")
    for kind, number in numbered:
        if kind != "equation" or not names:  # it stands in its paragraph
            names.append(f"{KIND[kind]} {number}")
    if "acknowledgements" in title:
        names.append("acknowledgements p1")
    return names


def script(folder: Path) -> str:
    """_static/paper.js for the pages in a folder: the words for their
    cards, by title. DataError without a copy.
    """
    path = copy_path()
    if not path.exists():
        raise DataError(MISSING)
    parts = split(text_of(path), str(path))
    cards: dict[str, str] = {}
    for page in sorted(folder.glob("*.html")):
        for title in CARD.findall(page.read_text("utf-8")):
            bare = " ".join(unescape(re.sub("<[^>]*>", "", title)).split())
            html = said(parts, named(bare)).html
            if html:
                cards[bare] = html
    told = json.dumps(cards, ensure_ascii=False).replace("</", "<\\/")
    return f"paperWords({told});\n"


def put_beside(folder: Path) -> Path:
    """Fill _static/paper.js of the site in a folder. DataError if there is
    none, or no copy.
    """
    place = folder / "_static" / "paper.js"
    if not place.is_file():
        raise DataError(
            f"{folder} does not have the pages of this book: there is no "
            "_static/paper.js"
        )
    write_text(place, script(folder))
    return place
