"""What Sphinx sets otherwise for an e-reader, which runs no scripts.

press.epub loads this as an extension, beside press.pages: figures stand
still, nothing asks to be typed, and what opens on a click stands at the
end of its page.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

from press.pages import fold, summary

# the style of a table of pandas, which is no XML
STYLE = re.compile(r"<style scoped>.*?</style>", re.S)
# raw HTML of a page that means nothing without the site or a script
NEEDLESS = re.compile(r'class="(?:guesses|poster|chapter-facts)"')


class Quiet(SphinxPostTransform):
    """Figures stand still, and what needs a script is left out."""

    default_priority = 197  # before press.pages folds
    formats = ("html",)

    def run(self, **options: Any) -> None:
        for cell in self.document.findall(nodes.container):
            for key in ("moves", "poster"):
                cell.get("cell_metadata", {}).pop(key, None)
        for raw in list(self.document.findall(nodes.raw)):
            text = STYLE.sub("", raw.astext())
            if NEEDLESS.search(text):
                raw.parent.remove(raw)
            elif text != raw.astext():
                raw.replace_self(nodes.raw("", text, format="html"))


class Answers(SphinxPostTransform):
    """What opens on a click stands at the end of the page, with a link to
    it and one back: e-readers do not fold, or cannot unfold. Only code
    remains a fold.
    """

    default_priority = 199  # after press.pages folds
    formats = ("html",)

    def run(self, **options: Any) -> None:
        page = next(self.document.findall(nodes.section), None)
        found = [*self.document.findall(_opens)]
        if page is None or not found:
            return
        end = nodes.section(ids=["answers-here"])
        end += nodes.title("", "Answers")
        for one in found:
            if _inside(one, end):  # of an answer that has moved
                one.replace_self(sum(_parts(one), []))
            else:
                end += _moved(one, str(len(end)))
        page += end


def _opens(node: nodes.Node) -> bool:
    """Whether it is a box, an output or a list of choices that folds."""
    if isinstance(node, nodes.admonition):
        return any(isinstance(part, fold) for part in node.children)
    classes = node["classes"] if isinstance(node, nodes.Element) else []
    return "choices" in classes or "answer" in classes


def _inside(node: nodes.Node, other: nodes.Element) -> bool:
    above: nodes.Node | None = node
    while above is not None and above is not other:
        above = above.parent
    return above is other


def _moved(one: nodes.Element, number: str) -> nodes.Element:
    """The answer, with a link back; a link to it is left in its place."""
    name, about = f"Answer {number}", ""
    if isinstance(one, nodes.admonition):
        name = one.next_node(summary).astext()
    elif "choices" in one["classes"]:
        about = one.parent[0].astext()
    left, body = _parts(one)
    back = _link("back to the question", f"question-{number}")
    head = nodes.paragraph("", "", nodes.strong("", f"{name}. "))
    head += [nodes.Text(f"{about} (" if about else "("), back]
    head += nodes.Text(")")
    here = nodes.container(ids=[f"question-{number}"])
    here += nodes.paragraph("", "", _link(name, f"answer-{number}"))
    one.replace_self([*left, here])
    moved = nodes.container(ids=[f"answer-{number}", *one["ids"]])
    moved += [head, *body]
    return moved


def _link(text: str, mark: str) -> nodes.reference:
    return nodes.reference("", text, internal=True, refid=mark)


def _parts(one: nodes.Element) -> tuple[list[nodes.Node], list[nodes.Node]]:
    """What is seen before it is opened, besides its title, and after."""
    if "choices" not in one["classes"]:
        shut = one.next_node(fold) if one.tagname == "admonition" else one
        return [], shut.children[1:]
    asked, told = (
        nodes.enumerated_list(enumtype="loweralpha", prefix="", suffix=".")
        for _ in range(2)
    )
    for choice in one.children:
        label, *said = choice.children
        text = nodes.paragraph("", "", *label.children[1:])
        asked += nodes.list_item("", text)
        told += nodes.list_item("", *said)
    return [asked], [told]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_post_transform(Quiet)
    app.add_post_transform(Answers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
