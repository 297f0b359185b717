"""The map of the paper: its parts, and where the book treats each."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from press.chapters import PressError

PAPER = "https://arxiv.org/html/1706.03762v7"
# where a numbered part stands
ANCHORS = {
    "fn 4": "S3.SS2.SSS1", "fn 5": "S6.SS1", "eq 1": "S3.E1",
    "eq 2": "S3.E2", "eq 3": "S5.E3", "fig 1": "S3.F1", "fig 2": "S3.F2",
    "table 1": "S4.T1", "table 2": "S6.T2", "table 3": "S6.T3",
    "table 4": "S6.T4", "abstract": "abstract1",
}  # fmt: skip
# strongest first
STATES = "at full size", "tested", "measured", "transcribed", "told"


def address(item: str) -> str:
    """Of a part of the paper, or of a section: `3.2.1 p4`, `5.3`."""
    name = re.match(r"(?:fn|eq|fig|table) \d|abstract", item)
    if name and name[0] in ANCHORS:
        return f"{PAPER}#{ANCHORS[name[0]]}"
    if found := re.match(r"[1-7](\.\d)*", item):
        levels = zip(("S", "SS", "SSS"), found[0].split("."), strict=False)
        return f"{PAPER}#{'.'.join(a + b for a, b in levels)}"
    return PAPER


def counts(paper: list[dict[str, Any]]) -> str:
    """`133 parts: 0 at full size, 56 tested, …`, of what paper_map made."""
    number = Counter(item["state"] for item in paper)
    each = [f"{number[state]} {state}" for state in STATES]
    return f"{len(paper)} parts: {', '.join(each[:-1])} and {each[-1]}"


def paper_map(root: Path) -> str | None:
    """book/paper.yml with the lines of book/paper.d/*.yml at each item,
    and the strongest of their states.

    None where there is no paper.yml. What the lines point at is for
    tests/pages/test_paper_map.py to check.
    """
    book = root / "book"
    if not (book / "paper.yml").is_file():
        return None
    items = _load(book / "paper.yml")
    lines: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((book / "paper.d").glob("*.yml")):
        for line in _load(path):
            item = line.pop("item", None)
            lines.setdefault(str(item), []).append(line)
    for item in items:
        item["covered"] = lines.get(str(item.get("item")), [])
        found = {line.get("state") for line in item["covered"]}
        item["state"] = next((s for s in STATES if s in found), None)
    return json.dumps(items, indent=1, ensure_ascii=False) + "\n"


def _load(path: Path) -> list[dict[str, Any]]:
    name = f"book/{path.name}"
    if path.parent.name != "book":
        name = f"book/{path.parent.name}/{path.name}"
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8")) or []
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        raise PressError(f"{name}: {line}") from None
    if not all(isinstance(entry, dict) for entry in entries):
        raise PressError(
            f"{name}: a list of entries is wanted, '- item: …'"
        )
    return entries
