"""What Sphinx and MyST-NB leave to do: folds, choices, a page's head.

`book/conf.py` loads this as an extension. Whatever folds is a <details>
element, so that everything can be reached without a script.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
import sys
from collections.abc import Iterator, Set
from pathlib import Path
from statistics import median
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

from press import previews
from press.figures import life
from press.notes import Notes

MARK = "✓"  # the right choice of a prediction begins so
MANY = 5  # columns: a table of words with as many is cards on a phone
FULL = 7  # columns: such a table takes the room of the contents, too
ROW = 50  # letters of a row of words
WIDE = 100  # characters: a longer line of output is wrapped
MINUS = re.compile(r"(?<![\w.)\]/-])-(?=\.?\d)")  # no date or range
SUMMARY = 180  # characters of a page's first paragraph for its description

NAMES = "names.json"  # of the sources: names of the package, words, works

log = logging.getLogger(__name__)


class fold(nodes.Element):
    """<details>; `group` has the others of its name closed."""


class summary(nodes.TextElement):
    """<summary>, always visible."""


class States(SphinxPostTransform):
    """Links to a figure in a certain state, which press.site gives as the
    title: the figure's script reads it. Elsewhere they lead to the figure.
    """

    default_priority = 199
    formats = ("html",)

    def run(self, **options: Any) -> None:
        for link in self.document.findall(nodes.reference):
            state = link.get("reftitle", "")
            if not re.fullmatch(r"\w+:[\w.=&%+-]*", state):
                continue
            del link["reftitle"]
            if self.app.builder.name == "html":
                page = link.get("refuri", "").partition("#")[0]
                link["refuri"] = f"{page}#{state}"


class Tables(SphinxPostTransform):
    """Tables of words that have many columns: wide, or a card per row.
    Numbers below zero have a minus sign, not the hyphen of code.
    """

    default_priority = 199  # after the outputs are chosen
    formats = ("html",)

    def run(self, **options: Any) -> None:
        for table in self.document.findall(nodes.table):
            _name_cells(table)
            _write_minus(table)


def _name_cells(table: nodes.table) -> None:
    """Each cell with the name of its column, which only a card shows."""
    head, *rows = ([*row] for row in table.findall(nodes.row))
    letters = [
        sum(letter.isalpha() for cell in row for letter in cell.astext())
        for row in rows
    ]
    if len(head) < MANY or not rows or median(letters) < ROW:
        return
    table["classes"].append("full-width" if len(head) >= FULL else "cards")
    names = [cell.astext() for cell in head]
    for row in rows:
        for name, cell in zip(names[1:], row[1:], strict=False):
            if name and cell.astext().strip():
                cell.insert(0, nodes.inline("", name, classes=["column"]))


def _write_minus(table: nodes.table) -> None:
    """A minus sign before each negative number, but not in code."""
    for text in [*table.findall(nodes.Text)]:
        if not isinstance(text.parent, nodes.literal | nodes.math):
            new = MINUS.sub("\N{MINUS SIGN}", text)
            if new != text:
                text.parent.replace(text, nodes.Text(new))


class Folds(SphinxPostTransform):
    """Code, answers, solutions and choices that open on a click."""

    default_priority = 198  # just before MyST-NB folds its own way
    formats = ("html",)

    def run(self, **options: Any) -> None:
        for cell in list(self.document.findall(nodes.container)):
            if cell.get("nb_element") == "cell_code":
                if "hide_mode" in cell and any(cell.findall(nodes.image)):
                    _put_first(cell)
                _fold_cell(cell)
                _join_answers(cell)
        for box in list(self.document.findall(nodes.container)):
            if "reading" in box["classes"]:
                _fold_with_output(box)
        for number, box in enumerate(
            self.document.findall(nodes.admonition)
        ):
            if "predict" in box["classes"]:
                _offer(box, f"choices-{number}")
            elif "dropdown" in box["classes"]:
                _fold_box(box)


def _fold_cell(cell: nodes.container) -> None:
    parts = {part.get("nb_element"): part for part in cell.children}
    code = parts.get("cell_code_source")
    output = parts.get("cell_code_output")
    if output and (moves := cell["cell_metadata"].get("moves")):
        _give_life(output, moves)
    for block in output.findall(nodes.literal_block) if output else ():
        if max(map(len, block.astext().splitlines()), default=0) > WIDE:
            block["classes"].append("wrap")
    mode = cell.attributes.pop("hide_mode", None)
    if mode is None:
        return
    labels = cell["cell_metadata"].get("fold", {})
    folded = code and _details(labels.get("code", "Code"), [code], "code")
    answer = labels.get("answer", "Show what happens")
    shown: list[nodes.Element | None]
    if mode == "all":
        shown = [_details(answer, [code, output], "answer")]
    elif mode == "output":
        shown = [code, output and _details(answer, [output], "answer")]
    elif mode == "input":  # the code of a figure comes below it
        shown = [output, folded]
    else:
        shown = [_details(answer, [output, folded], "answer")]
    cell.children = []
    if poster := cell["cell_metadata"].get("poster"):
        cell += nodes.raw("", poster, format="html")
    cell += [part for part in shown if part is not None]


def _give_life(output: nodes.Element, moves: dict[str, Any]) -> None:
    """A figure that moves gets its data and its script; without a script
    the still remains.
    """
    for box in output.findall(nodes.figure):
        box["classes"] += ["moves", f"moves-{moves['name']}"]
        box.insert(0, nodes.raw("", life(moves), format="html"))


def _put_first(figure: nodes.container) -> None:
    """A figure stands before the folded cells that lead to it and show
    nothing of their own: what they define is read after it, if at all.
    """
    page, place = figure.parent, figure.parent.index(figure)
    first = place
    while first and _only_folded(page[first - 1]):
        first -= 1
    page.remove(figure)
    page.insert(first, figure)


def _only_folded(node: nodes.Node) -> bool:
    """Whether it is a cell, folded already, without an output to show or
    to hide, and no part of the package.
    """
    if not isinstance(node, nodes.container):
        return False
    exported = any("tag_export" in name for name in node["classes"])
    alone = all(
        isinstance(part, fold) and "answer" not in part["classes"]
        for part in node.children
    )
    cell = node.get("nb_element") == "cell_code"
    return cell and alone and not exported


def _join_answers(cell: nodes.container) -> None:
    """What is hidden whole, right behind a hidden result, opens with it:
    twice the same button, one under the other, asks for nothing new.
    """
    page, place = cell.parent, cell.parent.index(cell)
    answers = _answers(cell)
    posters = [p for p in cell.children if isinstance(p, nodes.raw)]
    shown = len(cell.children) - len(answers) - len(posters)
    if not place or not answers or shown:
        return
    before = page[place - 1]
    if not isinstance(before, nodes.container) or not _answers(before):
        return
    page.remove(cell)
    first = _answers(before)[-1]
    for poster in posters:  # it is there to be drawn on
        before.insert(before.index(first), poster)
    cell.children = []
    cell += [part for one in answers for part in one[1:]]  # no summaries
    first += cell


def _answers(cell: nodes.container) -> list[fold]:
    return [
        part
        for part in cell.children
        if isinstance(part, fold) and "answer" in part["classes"]
    ]


def _fold_with_output(reading: nodes.container) -> None:
    """What is said of a hidden output, which it would give away. If that
    is a figure, the folded cells that it has passed are between them.
    """
    page = reading.parent
    for cell in reversed(page[: page.index(reading)]):
        if answers := _answers(cell):
            page.remove(reading)
            answers[-1] += reading
            return
        if not _only_folded(cell):
            return


def _fold_box(box: nodes.admonition) -> None:
    """An admonition of class `dropdown`, for example a solution."""
    title, *body = box.children
    box.children = []
    inside = _details("", body)
    inside[0].children = []
    inside[0] += title.children
    inside[0]["classes"] = ["admonition-title"]
    box += inside


def _offer(box: nodes.admonition, group: str) -> None:
    """The list of a prediction: a button for each choice."""
    lists = [x for x in box.children if isinstance(x, nodes.bullet_list)]
    offered = nodes.container(classes=["choices"])
    for item in lists[-1].children if lists else []:
        choice = _choice(item, group)
        if choice is None:
            log.warning(
                "a choice is written '- choice — what is wrong with it'",
                location=item,
            )
        else:
            offered += choice
    right = [x for x in offered.children if "right" in x["classes"]]
    if len(right) != 1:
        log.warning(
            f"one choice of a prediction is right: '- choice — {MARK} why'",
            location=box,
        )
    if lists:
        box.replace(lists[-1], offered)


def _choice(item: nodes.Node, group: str) -> fold | None:
    first, *more = item.children
    place = next(
        (
            row
            for row, child in enumerate(first.children)
            if isinstance(child, nodes.Text) and " — " in child
        ),
        None,
    )
    if place is None:
        return None
    head, _, tail = first.children[place].partition(" — ")
    tail = tail.lstrip()
    right = tail.startswith(MARK)
    verdict = "Right: " if right else "Not so: "
    reason = nodes.paragraph()
    reason += nodes.strong("", verdict)
    reason += nodes.Text(tail.removeprefix(MARK).lstrip())
    reason += first.children[place + 1 :]
    shown = _details("", [reason, *more], "right" if right else "wrong")
    shown["group"] = group
    shown[0].children = []
    # a name for those who hear it: a formula alone has none
    shown[0] += nodes.inline("", "Choice: ", classes=["visually-hidden"])
    shown[0] += [*first.children[:place], nodes.Text(head)]
    return shown


# --- names in prose -------------------------------------------------------


class Names(SphinxPostTransform):
    """Code in prose that names something of the package leads to its entry
    in the reference, once in a paragraph.
    """

    default_priority = 200  # after what folds is folded
    formats = ("html",)

    def run(self, **options: Any) -> None:
        known = getattr(self.env, "annotated_notes", {}).get("names", {})
        if not known:
            return
        domain = self.env.domains.python_domain
        here = _named(self.document)
        done: set[tuple[int, str]] = set()
        for code in list(self.document.findall(nodes.literal)):
            target = known.get(_name_in(code.astext(), here), "")
            if target not in domain.objects or _is_apart(code, target):
                continue
            if _is_elsewhere(code):
                continue
            place = id(code.parent), target
            if place in done:
                continue
            done.add(place)
            entry = domain.objects[target]
            page = self.app.builder.get_relative_uri(
                self.env.docname, entry.docname
            )
            link = nodes.reference(
                "", "", internal=True, classes=["api"],
                refuri=f"{page}#{entry.node_id}",
            )  # fmt: skip
            code.replace_self(link)
            link += code


def _name_in(text: str, here: set[str]) -> str:
    """The name that a piece of code consists of, `f()` where it is called.
    A plain word is one only where the page's code has it for a name.
    """
    found = re.fullmatch(r"([A-Za-z_][\w.]*)(\(.*\))?", text)
    if found is None:
        return ""
    if found[2] is not None:
        return f"{found[1]}()"
    plain = re.fullmatch("[a-z]+", text)
    return "" if plain and text not in here else text


def _named(page: nodes.document) -> set[str]:
    """What code of the page defines or imports, unless the page gives the
    same name to a value.
    """
    code = "\n".join(b.astext() for b in page.findall(nodes.literal_block))
    named = set(re.findall(r"^(?:def|class) (\w+)", code, re.M))
    for names in re.findall(
        r"^from [\w.]+ import (\([^)]*\)|[^(\n]+)", code, re.M
    ):
        named |= set(re.findall(r"\w+", names))
    given = re.findall(r"(?<![\w.])(\w+)(?:, \w+)* = ", code)
    return named - set(given)


def _is_apart(code: nodes.Node, target: str) -> bool:
    """Whether code is a link already, in a heading, on a button, or in the
    very entry that it names.
    """
    above = code.parent
    while above is not None:
        if isinstance(
            above,
            nodes.reference | nodes.title | summary | addnodes.pending_xref
            | addnodes.desc_signature,
        ):  # fmt: skip
            return True
        own = isinstance(above, addnodes.desc)
        if own and target in above[0].get("ids", []):
            return True
        above = above.parent
    return False


def _is_elsewhere(code: nodes.Node) -> bool:
    """Whether code is in a table's column of other people's names."""
    cell = code.parent
    while cell is not None and not isinstance(cell, nodes.entry):
        cell = cell.parent
    if cell is None:
        return False
    head = next(cell.parent.parent.parent.findall(nodes.row))
    return head[cell.parent.index(cell)].astext() == "elsewhere"


def read_names(app: Sphinx, env: Any) -> list[str]:
    """What the press says of names and words; all pages, if it is new."""
    known = _known(app)
    if known == getattr(env, "annotated_notes", {}):
        return []
    env.annotated_notes = known
    return sorted(env.found_docs)


def _known(app: Sphinx) -> dict[str, Any]:
    path = app.srcdir / NAMES
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def _details(label: str, body: list[Any], *classes: str) -> fold:
    node = fold(classes=["fold", *classes])
    node += summary(label, label)
    node += [part for part in body if part is not None]
    return node


def _visit_fold(self: Any, node: fold) -> None:
    more = {"name": node["group"]} if "group" in node else {}
    self.body.append(self.starttag(node, "details", **more))


def _depart_fold(self: Any, node: fold) -> None:
    self.body.append("</details>\n")


def _visit_summary(self: Any, node: summary) -> None:
    self.body.append(self.starttag(node, "summary", ""))


def _depart_summary(self: Any, node: summary) -> None:
    self.body.append("</summary>\n")


# --- the head of a page ---------------------------------------------------


def describe(
    app: Sphinx, name: str, template: str, context: Any, doctree: Any
) -> None:
    """Description and Open Graph; the title of the first page once."""
    if doctree is None or app.builder.name != "html":
        return
    title = html.unescape(context["title"])
    if name == app.config.root_doc:
        context["docstitle"] = ""  # else "Title — Title"
    words = ""
    for paragraph in doctree.findall(nodes.paragraph):
        text = " ".join(_read(paragraph).split())
        boxed = isinstance(paragraph.parent, nodes.Admonition)
        if len(text) > 40 and not boxed:
            words = text
            break
    if len(words) > SUMMARY:
        words = words[:SUMMARY].rsplit(" ", 1)[0] + " …"
    tags = [("name", "description", words)] if words else []
    tags += [
        ("property", "og:title", title),
        ("property", "og:type", "book"),
        ("property", "og:site_name", app.config.project),
    ]
    tags += [("property", "og:description", words)] if words else []
    tags += _preview(app, name, context.get("pageurl"))
    context["metatags"] += "".join(
        f'\n<meta {kind}="{key}" content="{html.escape(value)}">'
        for kind, key, value in tags
    )


def _read(paragraph: nodes.Element) -> str:
    """A paragraph's words, also those on buttons."""
    parts = []
    for node in paragraph.findall(nodes.Text):
        text = node.astext()
        if isinstance(node.parent, nodes.raw):
            text = html.unescape(re.sub(r"<[^>]*>", "", text))
        parts.append(text)
    return "".join(parts)


def _preview(
    app: Sphinx, name: str, address: str | None
) -> list[tuple[str, str, str]]:
    """The page's address and picture, or that of the first page; neither
    without the address of the site.
    """
    known = getattr(app.env, "annotated_notes", {})
    if not address:
        return []
    tags = [("property", "og:url", address)]
    pictures = known.get("previews", {})
    shown = name if name in pictures else app.config.root_doc
    if shown in pictures:
        picture = f"{known['site']}/{previews.path(shown)}"
        tags += [
            ("property", "og:image", picture),
            ("property", "og:image:width", str(previews.WIDTH)),
            ("property", "og:image:height", str(previews.HEIGHT)),
            ("property", "og:image:alt", pictures[shown]),
            ("name", "twitter:card", "summary_large_image"),
        ]
    return tags


def know_site(app: Sphinx, config: Any) -> None:
    """Sphinx's own name for the address of the site."""
    config.html_baseurl = _known(app).get("site", "")


class Proof(StandaloneHTMLBuilder):
    """Reads and links everything as for HTML, and writes nothing."""

    name = "proof"

    def get_outdated_docs(self) -> Iterator[str]:
        return iter(())  # only what was read again

    def prepare_writing(self, docnames: Set[str]) -> None:
        pass

    def copy_assets(self) -> None:  # extensions add theirs
        (Path(self.outdir) / "_static").mkdir(exist_ok=True)

    def write_doc(self, docname: str, doctree: nodes.document) -> None:
        pass

    def write_doc_serialized(
        self, docname: str, doctree: nodes.document
    ) -> None:
        pass

    def finish(self) -> None:
        pass


def _version() -> int:
    """Of all that sets pages: with another one, Sphinx sets each anew. It
    keeps what it has set, and looks at the texts alone.
    """
    files = sorted(
        str(module.__file__)
        for name, module in sys.modules.items()
        if name.startswith("press.")
    )
    texts = b"".join(Path(file).read_bytes() for file in files)
    return int(hashlib.sha256(texts).hexdigest()[:12], 16)


def setup(app: Sphinx) -> dict[str, Any]:
    app.setup_extension("press.formulas")
    app.add_builder(Proof)
    app.add_node(fold, html=(_visit_fold, _depart_fold))
    app.add_node(summary, html=(_visit_summary, _depart_summary))
    app.add_post_transform(Folds)
    app.add_post_transform(Tables)
    app.add_post_transform(Names)
    app.add_post_transform(Notes)
    app.add_post_transform(States)
    app.connect("config-inited", know_site)
    app.connect("env-updated", read_names)
    app.connect("html-page-context", describe)
    return {
        "env_version": _version(),
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }
