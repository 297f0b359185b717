"""Queries, keys and values in their colours, in formulas and in code.

In the chapters on attention itself their letters mean nothing else, so a
line of code and the formula that it computes show by colour what is what.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

PAGES = {"02-attention.html", "04-multi-head.html"}
MEANINGS = {"q": "query", "k": "key", "v": "value"}
# a letter that names something else: d_k is a size, a_k one of several
INDEXED = {"msub", "msup", "msubsup"}
FORMULA = re.compile(r"<math\b.*?</math>", re.S)
# a name, but no method of a dictionary
NAME = re.compile(
    r'(?<!<span class="o">\.</span>)<span class="n">'
    r"(?=(q|k|v|query|queries|keys?|values?)</span>)"
    r'|<span class="n">(?=w_(q|k|v)</span>)'
)


def colored(page: str) -> str:
    """A page of HTML whose letters and names say what they are."""
    page = FORMULA.sub(lambda match: _formula(match[0]), page)
    return NAME.sub(
        lambda m: f'<span class="n {_mark(m[1] or m[2])}">', page
    )


def _mark(name: str) -> str:
    return f"of-{MEANINGS[name[0].lower()]}"


def _formula(text: str) -> str:
    tree = ET.fromstring(text)
    _letters(tree)
    return ET.tostring(tree, encoding="unicode")


def _letters(part: ET.Element, index: bool = False) -> None:
    """Mark what is a letter of its own. A capital is one as an index, too:
    W^Q makes queries.
    """
    letter = part.text or ""
    own = letter.isupper() or not index
    if part.tag == "mi" and letter.lower() in MEANINGS and own:
        part.set("class", _mark(letter))
    for place, child in enumerate(part):
        script = part.tag in INDEXED and place > 0
        _letters(child, index or script)
