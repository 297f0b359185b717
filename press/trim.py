"""Style sheets of the theme without the rules that no page uses.

They are made for every kind of site: nine tenths of their rules name a
class that none of our pages has. A rule stays as soon as all the classes
and ids that it names are on some page, or are words of some script, which
may put them there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import tinycss2

NESTED = {"media", "supports", "layer", "container"}
OWN = {"_static/book.css", "_static/epub.css"}
CLASSES = re.compile(r'\b(?:class|id)="([^"]*)"')
SCRIPT = re.compile(r"<script\b[^>]*>(.*?)</script>", re.S)
SECTIONS = re.compile(r"sections(-more)?\.js$")
WORD = re.compile(r"[\w-]+")


def trim(pages: dict[str, bytes]) -> dict[str, bytes]:
    """The style sheets that are shorter so, by path."""
    used = _used(pages)
    found = {}
    for name, data in pages.items():
        if name.endswith(".css") and name not in OWN:
            text = data.decode("utf-8")
            shorter = "\n".join(_rules(text, used)) + "\n"
            found[name] = shorter.encode()
    return {n: d for n, d in found.items() if len(d) < len(pages[n])}


def _used(pages: dict[str, bytes]) -> set[str]:
    """Classes and ids of all pages, and words of all scripts."""
    found: set[str] = set()
    for name, data in pages.items():
        text = data.decode("utf-8", "replace")
        if name.endswith(".html"):
            for classes in set(CLASSES.findall(text)):
                found.update(classes.split())
            for script in set(SCRIPT.findall(text)):
                if not script.startswith("["):
                    found.update(WORD.findall(script))
        elif name.endswith(".js") and not SECTIONS.search(name):
            found.update(WORD.findall(text))
    return found


def _rules(css: Any, used: set[str]) -> Iterator[str]:
    for rule in tinycss2.parse_rule_list(css):
        if rule.type == "comment" and rule.value.startswith("!"):
            yield f"/*{rule.value}*/"  # a licence
        elif rule.type == "qualified-rule":
            kept = [s for s in _selectors(rule.prelude) if _fits(s, used)]
            if kept:
                head = ",".join(tinycss2.serialize(s).strip() for s in kept)
                yield f"{head}{{{tinycss2.serialize(rule.content)}}}"
        elif rule.type == "at-rule":
            head = f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}"
            if rule.content is None:
                yield f"{head};"
            elif rule.lower_at_keyword in NESTED:
                inner = "".join(_rules(rule.content, used))
                if inner:
                    yield f"{head}{{{inner}}}"
            else:
                yield f"{head}{{{tinycss2.serialize(rule.content)}}}"


def _selectors(prelude: list[Any]) -> Iterator[list[Any]]:
    one: list[Any] = []
    for token in prelude:
        if token.type == "literal" and token.value == ",":
            yield one
            one = []
        else:
            one.append(token)
    yield one


def _fits(selector: list[Any], used: set[str]) -> bool:
    """Whether something may be selected. What stands in brackets, as in
    `:not(.x)`, is not looked at.
    """
    for before, token in zip([None, *selector], selector):
        dot = before is not None and before.type == "literal"
        named = dot and before.value == "." and token.type == "ident"
        if (named or token.type == "hash") and token.value not in used:
            return False
    return True
