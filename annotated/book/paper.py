"""Exported from the book; edit the chapter, then run `make export`."""

import json
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from html import escape, unescape
from html.parser import HTMLParser
from http.client import HTTPException
from importlib import resources
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement

from annotated.corpora.fetch import open_url
from annotated.corpora.reading import text_of
from annotated.corpora.registry import data_folder
from annotated.engine.errors import DataError, UsageError, unknown
from annotated.engine.files import write_text

__all__ = ["copy_path", "keep", "excerpt", "card_script", "put_beside"]


# E28-paper.md: A page as a tree
_VOID = {"br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}


class _Reader(HTMLParser):
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
        if tag not in _VOID:
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


def _kinds(element: Element) -> set[str]:
    """Its classes, without the prefix of LaTeXML."""
    names = element.get("class", "").split()
    return {name.removeprefix("ltx_") for name in names}


def _inside(element: Element, kind: str) -> Element | None:
    """The first element of a kind, at any depth."""
    return next((e for e in element.iter() if kind in _kinds(e)), None)


# E28-paper.md: What is shown of an element
_KEPT = {
    "code", "em", "li", "ol", "p", "strong", "sub", "sup", "table",
    "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
_MATHML = {
    "math", "menclose", "mfrac", "mi", "mn", "mo", "mover", "mpadded",
    "mroot", "mrow", "mspace", "msqrt", "mstyle", "msub", "msubsup",
    "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover",
}  # fmt: skip
_PASSING = {
    "accent", "colspan", "columnalign", "display", "fence", "mathvariant",
    "rowspan", "separator", "stretchy",
}  # fmt: skip
_FONTS = {"font_bold": "strong", "font_italic": "em"}
_DROPPED = {
    "annotation", "annotation-xml", "button", "figure", "head", "nav",
    "script", "style", "svg", "template",
}  # fmt: skip
_LABELS = {"ERROR", "note_mark", "note_type", "tag_item", "tag_note"}
_DISPLAYS = {"equation", "equationgroup"}


def _shown(element: Element) -> str:
    """HTML that holds nothing but text, formulas, lists and tables."""
    tag, kinds = element.tag, _kinds(element)
    if tag in _DROPPED or kinds & _LABELS:
        return ""
    if "note" in kinds:
        return f"<sup>{escape(_mark(element))}</sup>"
    if kinds & _DISPLAYS:
        rows = _formulas(element, _shown)
        lines = "".join(f"<div>{row}</div>" for row in rows)
        return f'<div class="equation">{lines}</div>'
    text = escape(element.text or "", quote=False)
    for child in element:
        text += _shown(child) + escape(child.tail or "", quote=False)
    tag = next((_FONTS[name] for name in _FONTS if name in kinds), tag)
    if tag not in _KEPT | _MATHML:
        return text
    passing = "".join(
        f' {name}="{escape(value)}"'
        for name, value in element.items()
        if name in _PASSING
    )
    return f"<{tag}{passing}>{text}</{tag}>"


def _formulas(
    block: Element, show: Callable[[Element], str]
) -> Iterator[str]:
    """Each row of a displayed formula, with its number."""
    rows = [e for e in block.iter() if e.tag == "tr"] or [block]
    for row in rows:
        formulas = [show(e) for e in row.iter() if e.tag == "math"]
        number = _inside(row, "tag_equation")
        if formulas:
            last = [] if number is None else [show(number).strip()]
            yield " ".join([*formulas, *last])


def _mark(note: Element) -> str:
    """The sign of a footnote."""
    sign = _inside(note, "note_mark")
    return "" if sign is None else (sign.text or "").strip()


_BLOCKS = {"li", "ol", "p", "table", "tr", "ul"}


def _plain(element: Element) -> str:
    """Text, with blank lines between blocks and TeX for formulas."""
    tag, kinds = element.tag, _kinds(element)
    if tag in _DROPPED or kinds & _LABELS:
        return ""
    if tag == "math":
        tex = " ".join(element.get("alttext", "").split())
        return f"${tex.removeprefix(chr(92) + 'displaystyle').strip()}$"
    if "note" in kinds:
        return f"[{_mark(element)}]"
    if kinds & _DISPLAYS:
        return "\n\n" + "\n\n".join(_formulas(element, _plain)) + "\n\n"
    text = " ".join((element.text or "").split("\n"))
    for child in element:
        text += _plain(child) + " ".join((child.tail or "").split("\n"))
    if tag in {"td", "th"}:
        return f"{text.strip()} | " if text.strip() else ""
    if tag == "tr":
        text = text.strip().removesuffix(" |")
    return f"\n\n{text}\n\n" if tag in _BLOCKS else text


def _wrapped(text: str) -> str:
    """Paragraphs of at most 76 columns."""
    blocks = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(textwrap.fill(b, 76) for b in blocks if b)


# E28-paper.md: The parts of the paper
_SECTION = re.compile(r"S(\d+)(?:\.SS(\d+))?(?:\.SSS(\d+))?$")
_CAPTION = re.compile(r"(fig|table)\w*\s*(\d+)", re.I)
_BODY = 4  # the number of the first footnote that is not on the title page


@dataclass
class _Split:
    """The parts of the paper: elements, by name."""

    parts: dict[str, list[Element]] = field(default_factory=dict)
    notes: int = 0
    paragraphs: dict[str, int] = field(default_factory=dict)
    display: bool = False  # a formula has just stood alone

    def walk(self, element: Element, section: str = "") -> None:
        """Collect an element's parts, and those inside it."""
        kinds, name = _kinds(element), element.get("id", "")
        if numbered := _SECTION.match(name):
            section = ".".join(filter(None, numbered.groups()))
        elif kinds & {"appendix", "bibliography"}:
            section = ""
        elif "abstract" in kinds:
            section = "abstract"
        if _plain_title(element).startswith("Acknowledg"):
            section = "acknowledgements"
        if element.tag == "figure":
            self.figure(element)
        elif "para" in kinds and section:
            self.paragraph(element, section)
        elif section == "abstract" and element.tag == "p":
            self.add("abstract p1", element)
        else:
            if "paragraph" in kinds:
                _run_in(element)
            for child in element:
                self.walk(child, section)

    def add(self, name: str, element: Element) -> None:
        """One element more for a part."""
        self.parts.setdefault(name, []).append(element)

    def paragraph(self, para: Element, section: str) -> None:
        """A paragraph of a section: its text, formulas and points."""
        text = "".join(_plain(e) for e in para if e.tag == "p").strip()
        goes_on = self.display and text[:1].islower()
        before = self.paragraphs.get(section, 0)
        if text and not goes_on:
            self.paragraphs[section] = before = before + 1
        name = f"{section} p{max(1, before)}"
        for block in para:
            kinds = _kinds(block)
            self.display = bool(kinds & _DISPLAYS)
            if kinds & {"itemize", "enumerate"}:
                points = [e for e in block if "item" in _kinds(e)]
                for i, point in enumerate(points, 1):
                    self.add(f"{section} point {i}", point)
                continue
            if self.display:
                tag = _inside(block, "tag_equation")
                number = "" if tag is None else _plain(tag).strip(" ()")
                formula = f"eq {number}" if number else f"{section} eq"
                self.add(formula, block)
            self.add(name, block)
        self.inner(para)

    def inner(self, para: Element) -> None:
        """Footnotes and figures that stand in a paragraph."""
        for element in para.iter():
            if element.tag == "figure":
                self.figure(element)
            elif "role_footnote" in _kinds(element):
                content = _inside(element, "note_content")
                if content is not None:
                    self.add(f"fn {_BODY + self.notes}", content)
                self.notes += 1

    def figure(self, figure: Element) -> None:
        """A figure's caption, and a table with it."""
        caption = _inside(figure, "caption")
        numbered = caption is not None and _CAPTION.match(
            _plain(caption).strip()
        )
        if caption is None or not numbered:
            for child in figure:  # panels with captions of their own
                self.walk(child)
            return
        name = f"{numbered[1].lower()} {numbered[2]}"
        if name not in self.parts:
            self.add(name, caption)
            table = _inside(figure, "tabular")
            if table is not None:
                self.add(name, table)


def _plain_title(element: Element) -> str:
    """The title of a section, if it is one and has one."""
    for child in element:
        if "title" in _kinds(child):
            return " ".join(_plain(child).split())
    return ""


def _run_in(section: Element) -> None:
    """The title of a small section at the start of its first paragraph."""
    first, title = _inside(section, "p"), _plain_title(section)
    if first is not None and title:
        heading = Element("strong")
        heading.text, heading.tail = title, f" {first.text or ''}"
        first.text = None
        first.insert(0, heading)


# E28-paper.md: The reader's copy
_SOURCES = (
    "https://arxiv.org/html/1706.03762v7",
    "https://ar5iv.labs.arxiv.org/html/1706.03762",
)
_TITLE = "attention is all you need"


def copy_path() -> Path:
    """Where the copy is, or will be."""
    return data_folder() / "paper" / "1706.03762.html"


def keep(file: Path | None = None) -> Path:
    """Keep the paper: a file that you have saved, or as arXiv or ar5iv
    have it. DataError if it cannot be had, or is something else.
    """
    text = _fetched() if file is None else text_of(file)
    _split(text, "what was fetched" if file is None else str(file))
    path = copy_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def _fetched() -> str:
    """The page from the first place that has it."""
    for address in _SOURCES:
        try:
            with open_url(address) as page:
                return str(page.read().decode("utf-8"))
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)  # of a URLError
            failure = " ".join(str(reason).split())[:120]
    raise DataError(
        f"the paper could not be fetched ({failure}): save {_SOURCES[0]} "
        "from your browser, and give the file with --file"
    )


_NUMBERED = re.compile(r"(\d(?:\.\d)*) p(\d+)$")


@cache
def _counted() -> dict[str, int]:
    """The paragraphs of each numbered section, by the map."""
    file = resources.files("annotated.book") / "paper.json"
    numbers: dict[str, int] = {}
    for part in json.loads(file.read_text("utf-8")):
        if match := _NUMBERED.match(part["item"]):
            numbers[match[1]] = int(match[2])
    return numbers


def _split(text: str, origin: str) -> dict[str, list[Element]]:
    """The parts of the paper, and its sections, by name. DataError if the
    page is not the paper.
    """
    reader, split = _Reader(), _Split()
    reader.feed(text)
    title = _inside(reader.root, "title_document")
    told = "" if title is None else " ".join(_plain(title).split())
    if _TITLE not in told.lower():
        named = f"its title is “{told[:60]}”" if told else "it has no title"
        raise DataError(
            f"{origin} is not the paper: {named}; wanted is the HTML of "
            f"{_SOURCES[0]}"
        )
    split.walk(reader.root)
    missing = [s for s in _counted() if s not in split.paragraphs]
    if missing:
        raise DataError(
            f"{origin} is not the whole paper: it has no section "
            f"{', '.join(missing)}"
        )
    return {**split.parts, **_sections(split)}


def _sections(split: _Split) -> dict[str, list[Element]]:
    """Each section; and its paragraphs, where their count is another."""
    sections: dict[str, list[Element]] = {}
    for section, count in _counted().items():
        pattern = re.compile(rf"{re.escape(section)} (p|point )\d+$")
        elements = [
            e
            for n, part in split.parts.items()
            if pattern.match(n)
            for e in part
        ]
        sections[section] = elements
        if split.paragraphs[section] != count:
            names = [f"{section} p{n}" for n in range(1, count + 1)]
            sections |= dict.fromkeys(names, elements)
    return sections


def _copy() -> dict[str, list[Element]]:
    """The parts of the reader's copy. DataError if there is none."""
    path = copy_path()
    if not path.exists():
        raise DataError(
            "there is no copy of the paper yet: run `annotated paper`"
        )
    return _split(text_of(path), str(path))


@dataclass(frozen=True)
class _Words:
    """Parts of the paper: HTML in a notebook, text elsewhere."""

    html: str
    text: str

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<blockquote>{self.html}</blockquote>"


def excerpt(name: str) -> _Words:
    """A part of the paper from your copy: "3.2.1", "3.2.1 p4", "eq 1",
    "table 3", "fn 4", or the title of a card. DataError without a copy,
    UsageError for a part that the paper does not have.
    """
    parts = _copy()
    known = re.sub(r"^((?:fig|table|eq|fn) \d+).*", r"\1", name.strip())
    names = [known] if known in parts else _named(name)
    if not parts.keys() & names:
        hint = 'name a section (3.2.1), "table 3", "fig 2", "eq 1", "fn 4"'
        raise UsageError(unknown("part of the paper", known, parts, hint))
    return _said(parts, names)


def _said(parts: dict[str, list[Element]], names: list[str]) -> _Words:
    """Those of the names that there are, one after the other."""
    every = [e for name in names for e in parts.get(name, [])]
    # a formula may be named, and stand in a paragraph that is named too
    elements = [*{id(e): e for e in every[::-1]}.values()][::-1]
    html = "".join(f"<div>{_shown(e)}</div>" for e in elements)
    return _Words(html, _wrapped("\n\n".join(map(_plain, elements))))


# E28-paper.md: Beside the cards
_CARD = re.compile(
    r'<div class="[^"]*\bpaper\b[^"]*admonition[^"]*">\s*'
    r'<p class="admonition-title">(.*?)</p>',
    re.S,
)
_ORDER = ("first", "second", "third")
_KIND = {
    "Figure": "fig", "Table": "table", "equation": "eq",
    "footnote": "fn",
}  # fmt: skip


def _named(title: str) -> list[str]:
    """The parts that a card's title names: "Paper §3.2.1, paragraph 4, and
    footnote 4" has "3.2.1 p4" and "fn 4".
    """
    match = re.search(r"§(\d(?:\.\d)*)", title)
    section = match[1] if match else ""
    names = []
    if numbers := re.search(r"paragraphs? (\d)(?: (and|to) (\d))?", title):
        last = int(numbers[3] or numbers[1])
        names = [
            f"{section} p{n}" for n in range(int(numbers[1]), last + 1)
        ]
    elif numbers := re.search(rf"({'|'.join(_ORDER)}) point", title):
        names = [f"{section} point {_ORDER.index(numbers[1]) + 1}"]
    elif "opening" in title:
        names = [f"{section} p1"]
    if "formula" in title:
        names.insert(0, f"{section} eq")
    numbered = re.findall(rf"({'|'.join(_KIND)}) (\d)", title)
    formula = any(kind == "equation" for kind, _ in numbered)
    if section and not names and not formula:
        names = [section]
    if "abstract" in title:
        names.append("abstract p1")
    for kind, number in numbered:
        if kind != "equation" or not names:  # it stands in its paragraph
            names.append(f"{_KIND[kind]} {number}")
    if "acknowledgements" in title:
        names.append("acknowledgements p1")
    return names


def card_script(folder: Path) -> str:
    """_static/paper.js for the pages in a folder: the words for their
    cards, by title. DataError without a copy.
    """
    parts, cards = _copy(), dict[str, str]()
    for page in sorted(folder.glob("*.html")):
        for title in _CARD.findall(page.read_text("utf-8")):
            bare = " ".join(unescape(re.sub("<[^>]*>", "", title)).split())
            html = _said(parts, _named(bare)).html
            if html:
                cards[bare] = html
    told = json.dumps(cards, ensure_ascii=False).replace("</", "<\\/")
    return f"paperWords({told});\n"


def put_beside(folder: Path) -> Path:
    """Fill _static/paper.js of the site in a folder. DataError if there is
    none, or no copy.
    """
    file = folder / "_static" / "paper.js"
    if not file.is_file():
        raise DataError(
            f"{folder} does not have the pages of this book: there is no "
            "_static/paper.js"
        )
    write_text(file, card_script(folder))
    return file
