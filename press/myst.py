"""MyST to plain Markdown, for Colab and Jupyter, which know no directives.

Where plain Markdown has no counterpart the text is kept and the markup is
dropped: a reader of the notebook misses a box, never a sentence.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from press import numbers
from press.chapters import Chapter, headings
from press.project import Project
from press.references import works

FENCE = re.compile(r"\s*(`{3,}|~{3,}|:{3,})\s*(?:\{([\w:+.-]+)\})?\s*(.*)$")
TARGET = re.compile(r"^\(([^()\s]+)\)=\s*$", re.M)
INLINE = re.compile(
    r"\{(?P<role>[a-zA-Z][\w:+.-]*)\}(?P<ticks>`+)(?P<text>.+?)(?P=ticks)"
    r"|(?P<code>(?P<fence>`+)(?!`).+?(?<!`)(?P=fence)(?!`))"
    r"|(?P<display>\$\$.+?\$\$)[ \t]*(?:\([\w:-]+\))?"
    r"|(?P<math>\$[^$]+\$)"
    r"|(?P<image>!?)\[(?P<label>[^\]\[]*)\]\((?P<link>[^)\s]+)\)",
    re.DOTALL,
)
DROPPED = {
    "contents", "guess", "raw", "tableofcontents", "toctree",
}  # fmt: skip
CODE = {"code", "code-block", "sourcecode"}
NAMED = {
    "attention", "caution", "danger", "error", "hint", "important", "note",
    "seealso", "tip", "warning",
}  # fmt: skip


@dataclass
class Index:
    """What references point at, over the whole book."""

    project: Project
    titles: dict[str, str] = field(default_factory=dict)  # by file name
    labels: dict[str, tuple[str, str]] = field(default_factory=dict)
    slugs: dict[tuple[str, str], str] = field(default_factory=dict)
    citations: dict[str, str] = field(default_factory=dict)


def index(chapters: list[Chapter], root: Path, project: Project) -> Index:
    found = Index(project)
    for chapter in chapters:
        found.titles[chapter.file] = chapter.title
        for cell in chapter.cells:
            if cell.kind == "markdown":
                _index_text(cell.source, chapter.file, found)
    found.labels |= numbers.labels(chapters)
    found.citations = {
        work.key: f"[{work.short}]({work.url})" if work.url else work.short
        for work in works(root)
    }
    return found


def _index_text(source: str, file: str, found: Index) -> None:
    for _, title in headings(source):
        found.slugs[file, slug(title)] = title
    lines = source.splitlines()
    title = ""
    for row, line in enumerate(lines):
        if match := TARGET.match(line):
            below = headings("\n".join(lines[row + 1 : row + 3]))
            found.labels[match[1]] = (file, below[0][1] if below else "")
        elif (match := FENCE.match(line)) and match[2]:
            title = match[3]
        elif match := re.match(r"\s*:(?:label|name):\s*(\S+)", line):
            found.labels[match[1]] = (file, title)


def slug(title: str) -> str:
    """The anchor that MyST gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


class Translator:
    """The Markdown cells of one chapter."""

    def __init__(self, file: str, index: Index) -> None:
        self.file = file
        self.index = index
        self.exercises = 0  # so far

    def translate(self, text: str) -> str:
        """Plain Markdown with the same sentences."""
        done: list[str] = []
        plain: list[str] = []
        lines = text.splitlines()
        row = 0
        while row < len(lines):
            match = FENCE.match(lines[row])
            if match is None:
                plain.append(lines[row])
                row += 1
                continue
            done += [self.inline("\n".join(plain))] if plain else []
            plain = []
            end = _closing(lines, row, match[1])
            inside = lines[row + 1 : end]
            if match[2] or match[1][0] == ":":
                done.append(
                    self.directive(match[2] or "", match[3], inside)
                )
            else:
                done.append("\n".join(lines[row : end + 1]))
            row = end + 1
        done += [self.inline("\n".join(plain))] if plain else []
        joined = "\n".join(done)
        return re.sub(r"\n{3,}", "\n\n", joined).strip("\n")

    # --- blocks ---

    def directive(self, name: str, title: str, lines: list[str]) -> str:
        given, lines = options(lines)
        body = "\n".join(lines).strip("\n")
        if name in DROPPED:
            return ""
        if name == "math":
            return f"$$\n{body}\n$$"
        if name in CODE:
            return f"```{title}\n{body}\n```"
        if name in {"figure", "image"}:
            picture = self.picture(title, given.get("alt", ""))
            caption = self.translate(body)
            return f"{picture}\n\n{caption}".strip("\n")
        if name == "list-table":
            return _strong(self.inline(title)) + self.list_table(body)
        title = self.inline(title)
        body = self.translate(body)
        classes = given.get("class", "").split()
        if name == "solution":
            return details("Solution", body)
        if name == "exercise":
            self.exercises += 1
            page = numbers.number_of(self.file)
            number = f"{page}.{self.exercises}"
            title = numbers.exercise_title(title, number)
            return f"**{title}**\n\n{body}".rstrip("\n")
        if "predict" in classes:
            return _quote(_strong(title) + _choices(body))
        folded = "dropdown" in classes or name == "dropdown"
        if name in NAMED:
            title = (
                title or name.replace("seealso", "see also").capitalize()
            )
        if folded:
            return details(title, body)
        if name == "admonition" or name in NAMED:
            return _quote(_strong(title) + body)
        return _strong(title) + body

    def picture(self, target: str, alt: str) -> str:
        if "://" not in target:
            path = posixpath.normpath(posixpath.join("book", target))
            target = self.index.project.raw(path.lstrip("/"))
        return f"![{alt}]({target})"

    def list_table(self, body: str) -> str:
        rows: list[list[str]] = []
        for line in body.splitlines():
            if match := re.match(r"\s*\*\s+-\s*(.*)", line):
                rows.append([match[1]])
            elif match := re.match(r"\s+-\s*(.*)", line):
                rows[-1].append(match[1])
            elif rows and line.strip():
                rows[-1][-1] += " " + line.strip()
        rows.insert(1, ["---"] * len(rows[0]) if rows else [])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    # --- inside a paragraph ---

    def inline(self, text: str) -> str:
        """Roles, links and labels of running text."""
        text = TARGET.sub("", text)
        text = re.sub(r"^%.*\n?", "", text, flags=re.M)
        return numbers.once(INLINE.sub(self._inline, text))

    def _inline(self, match: re.Match[str]) -> str:
        if match["role"]:
            return self.role(match["role"], " ".join(match["text"].split()))
        if match["display"]:
            return match["display"]
        if match["link"]:
            if match["image"]:
                return self.picture(match["link"], match["label"])
            return self.link(match["label"], match["link"])
        return match[0]

    def role(self, role: str, text: str) -> str:
        if role.startswith("cite"):
            known = self.index.citations
            keys = [key.strip() for key in text.split(",")]
            return "; ".join(known.get(key, key) for key in keys)
        if role == "math":
            return f"${text}$"
        if role in {"code", "kbd"}:
            return f"`{text}`"
        shown, target = "", text
        if match := re.fullmatch(r"(.*?)\s*<([^<>]+)>", text):
            shown, target = match[1], match[2]
        if role == "numref":
            shown = re.sub(r"\s*(%s|\{number\})", "", shown)
        if role in {"ref", "numref", "prf:ref", "doc", "download"}:
            if role == "doc" and not target.endswith(".md"):
                target = f"{posixpath.basename(target)}.md"
            return self.link(shown, target)
        return shown or text

    def link(self, text: str, target: str) -> str:
        """A link that works from book/notebooks/ and on Colab."""
        path, _, anchor = target.partition("#")
        name = posixpath.basename(path)
        if "://" in target or target.startswith("mailto:"):
            return f"[{text or target}]({target})"
        if name in self.index.titles:
            text = text or self.index.titles[name]
            return f"[{text}]({name.removesuffix('.md')}.ipynb)"
        label = anchor or target
        if (self.file, label) in self.index.slugs:
            file, title = self.file, self.index.slugs[self.file, label]
        elif label in self.index.labels:
            file, title = self.index.labels[label]
        elif path and not anchor and "." in name:
            path = posixpath.normpath(posixpath.join("book", path))
            return f"[{text or name}]({self.index.project.source(path)})"
        else:
            return text or label
        text = text or title or label
        if file != self.file:
            return f"[{text}]({file.removesuffix('.md')}.ipynb)"
        heading = (file, slug(title)) in self.index.slugs
        anchor = title.replace(" ", "-")  # as Jupyter names its headings
        return f"[{text}](#{anchor})" if heading else text


def _closing(lines: list[str], row: int, mark: str) -> int:
    for end in range(row + 1, len(lines)):
        line = lines[end].strip()
        if line.startswith(mark) and not line.strip(mark[0]):
            return end
    return len(lines)


def options(lines: list[str]) -> tuple[dict[str, str], list[str]]:
    """A directive's options, `:key: value` or YAML, and what is below."""
    if lines and lines[0].strip() == "---":
        end = next(
            (i for i, x in enumerate(lines[1:], 1) if x.strip() == "---"), 0
        )
        data = yaml.safe_load("\n".join(lines[1:end])) or {}
        return {str(k): str(v) for k, v in data.items()}, lines[end + 1 :]
    found: dict[str, str] = {}
    for row, line in enumerate(lines):
        match = re.match(r"\s*:([\w-]+):\s*(.*)$", line)
        if match is None:
            return found, lines[row:]
        found[match[1]] = match[2]
    return found, []


def _strong(title: str) -> str:
    return f"**{title}**\n\n" if title else ""


def _quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def details(title: str, body: str) -> str:
    # the blank lines make Jupyter and Colab read the inside as Markdown
    return (
        f"<details>\n<summary>{title or 'More'}</summary>\n\n"
        f"{body}\n\n</details>"
    )


def _choices(body: str) -> str:
    """The question and its choices; which is right, only when asked."""
    items = re.findall(r"^- .*(?:\n(?!- ).*\S.*)*", body, re.M)
    question = body[: body.index(items[0])] if items else body
    offered = [item.partition(" — ")[0] for item in items]
    answers = details("Answers", "\n".join(items))
    return f"{question}{chr(10).join(offered)}\n\n{answers}"
