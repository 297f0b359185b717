"""What the search looks through: the sections of the pages.

Sphinx's own index knows in which page a word is, and fetches the page for
an excerpt, which a browser forbids where the site is opened as files.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from dataclasses import dataclass, field
from html.parser import HTMLParser

from press.words import GLOSSARY

# what does not part words
INLINE = {
    "a", "abbr", "b", "button", "cite", "code", "em", "i", "kbd", "math",
    "small", "span", "strong", "sub", "sup", "wbr",
}  # fmt: skip
VOID = {"br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
# controls, and formulas that stand alone
SKIPPED = {
    "headerlink", "chapter-facts", "visually-hidden", "column", "note",
    "guesses", "api-facts", "page-tools",
}  # fmt: skip
# what a reader is to find alone, or has not asked for yet
HIDDEN = {"solution", "answer", "choices"}
FIRST = re.compile(r"\d\d-|A\d")  # pages that most readers look for
ROW = re.compile(r"<tr\b[^>]*>(.*?)</tr>", re.S)
LINK = re.compile(r'href="(\d\d-[\w-]+\.html)(#[\w-]+)"')
DEFINED = re.compile(r"^\s*(?:class|def) (\w+)", re.M)
WORD = re.compile(r"[^\W\d_]\w*(?:-\w+)*")

# how a formula reads without TeX; what sets type leaves nothing
SIGNS = {
    "cdot": "·", "times": "×", "sqrt": "√", "le": "≤", "ge": "≥",
    "approx": "≈", "pm": "±", "odot": "⊙", "sum": "Σ", "partial": "∂",
    "in": "∈", "infty": "∞", "top": "ᵀ", "ell": "l", "leftarrow": "←",
    "dots": "…", "ldots": "…", "cdots": "…", "to": "→", "varepsilon": "ε",
    "%": "%", "_": "_", ",": " ", ";": " ", " ": " ",
}  # fmt: skip
FUNCTIONS = {"log", "ln", "max", "min", "sin", "cos", "tanh", "exp"}
GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
FRACTION = re.compile(rf"\\t?frac(?:{GROUP}{GROUP}|(\w)(\w))")


def sections(
    pages: dict[str, bytes], questions: str = ""
) -> dict[str, bytes]:
    """Two scripts with a row per section: page, its title, anchor, heading,
    text, the words of its code, the names that this defines, the words of
    what is hidden until a reader asks, and what one who looks for it would
    ask. Code and answers are found and not shown, so each of their words is
    sent once: half as much. The story and the appendices, in which most
    queries find their answer, come first; the engine room and the reference
    are loaded after it. Scripts, since a file may load no other kind.

    questions has a line a section: its place, a tab, and what is asked.
    """
    first: list[list[str]] = []
    more: list[list[str]] = []
    asked = dict(line.split("\t") for line in questions.splitlines())
    for name in sorted(pages):
        if "/" in name or not name.endswith(".html"):
            continue
        reader = _Reader()
        reader.feed(pages[name].decode("utf-8"))
        found = [one.row() for one in reader.found]
        for number, (anchor, *words) in enumerate(found):
            # the first opens the page at its top
            anchor = f"#{anchor}" if number else ""
            rows = first if FIRST.match(name) else more
            place = name.removesuffix(".html") + anchor
            row = [name, found[0][1], anchor, *words, asked.get(place, "")]
            rows.append(row)
    lessons = json.dumps(_taught(pages), ensure_ascii=False)
    start = (
        f"const SECTIONS = {_lines(first)};\nconst TAUGHT = {lessons};\n"
    )
    return {
        "sections.js": start.encode(),
        "sections-more.js": f"const MORE = {_lines(more)};\n".encode(),
    }


def _lines(rows: list[list[str]]) -> str:
    """A list in JSON, a row on each line."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return f"[\n{lines}\n]"


def _taught(pages: dict[str, bytes]) -> list[list[str]]:
    """Words of the glossary, each with the page and the section that it
    says the word is built in.
    """
    found = []
    text = pages.get(f"{GLOSSARY}.html", b"").decode("utf-8")
    for row in ROW.findall(text):
        word, _, rest = row.partition("</td>")
        link = LINK.search(rest)
        plain = html.unescape(re.sub(r"<[^>]*>", "", word)).strip()
        if link and plain:
            for name in re.split(r", | \(|\)", plain):
                if name:
                    found.append([name, link[1], link[2]])
    return found


@dataclass
class _Section:
    anchor: str
    title: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)

    names: list[str] = field(default_factory=list)

    def row(self) -> list[str]:
        names = [*self.names, *DEFINED.findall("".join(self.code))]
        return [
            self.anchor,
            _joined(self.title),
            _joined(self.text),
            _words(self.code),
            " ".join(dict.fromkeys(names)),
            _words(self.hidden),
        ]


def _joined(parts: list[str]) -> str:
    return " ".join("".join(parts).split())


def _words(parts: list[str]) -> str:
    """Each word once, as it is first written."""
    found: dict[str, str] = {}
    for word in WORD.findall("".join(parts)):
        found.setdefault(word.lower(), word)
    return " ".join(found.values())


class _Reader(HTMLParser):
    """The sections of a page, each without the sections inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[_Section] = []
        self.inside: list[_Section] = []
        self.tags: list[tuple[str, str]] = []  # open, and what they are for
        self.around = ""  # what the formula is part of

    def handle_starttag(
        self, tag: str, attrs: list[tuple[str, str | None]]
    ) -> None:
        given = dict(attrs)
        classes = set((given.get("class") or "").split())
        if tag == "section":
            self.inside.append(_Section(given.get("id") or ""))
            self.found.append(self.inside[-1])
        if tag == "dt" and self.inside and given.get("id"):  # an entry
            name = (given["id"] or "").rpartition(".")[2]
            self.inside[-1].names.append(name)
        if tag not in INLINE:
            self._add(" ")
        if tag not in VOID:
            self.tags.append((tag, self._use(tag, classes)))

    def _use(self, tag: str, classes: set[str]) -> str:
        """What text in this element is: title, text, code, hidden or
        nothing.
        """
        above = self.tags[-1][1] if self.tags else "text"
        if tag == "math":
            self.around = above  # the use of its TeX
            return "math" if above else ""
        if above == "math":
            return self.around if tag == "annotation" else "math"
        button = tag == "button" and "note-of" not in classes
        control = button or tag in {"script", "style"} or classes & SKIPPED
        if not above or control or (tag == "div" and "math" in classes):
            return ""
        if tag == "summary" and "admonition-title" not in classes:
            return ""
        if above == "hidden" or classes & HIDDEN:
            return "hidden"
        if tag in HEADINGS:
            return "title"
        if tag == "pre" or "dataframe" in classes:
            return "code"
        return above

    def handle_endtag(self, tag: str) -> None:
        while self.tags and self.tags.pop()[0] != tag:
            pass
        if tag == "section" and self.inside:
            self.inside.pop()
        if tag not in INLINE:
            self._add(" ")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "annotation":
            # a formula, as one would type it
            data = FRACTION.sub(r"\1\3/\2\4", data)
            data = re.sub(r"\\([A-Za-z]+|.)|[{}]", _plain, data)
        self._add(data)

    def _add(self, text: str) -> None:
        use = self.tags[-1][1] if self.tags else "text"
        if self.inside and use not in {"", "math"}:
            parts: list[str] = getattr(self.inside[-1], use)
            parts.append(text)


def _plain(match: re.Match[str]) -> str:
    """A command of TeX as a sign, or as nothing."""
    name = match[1] or ""
    if name in FUNCTIONS:
        return f"{name} "
    for size in ("CAPITAL", "SMALL")[name[:1].islower() :]:
        try:
            return unicodedata.lookup(f"GREEK {size} LETTER {name}")
        except KeyError:
            continue
    return SIGNS.get(name, "")
