"""Exported from the book; edit the chapter, then run `make export`."""

import json
from importlib import resources

__all__ = ["MOVING", "colors"]


# E36-colours.md: Colours that mean something
MOVING = resources.files("annotated") / "book" / "moving"


def colors(dark: bool = False) -> dict[str, str]:
    """The book's colours by name, as on a light page or on a dark one."""
    groups = json.loads((MOVING / "tokens.json").read_text("utf-8"))
    return {
        name: pair[dark]
        for group in groups["colors"].values()
        for name, pair in group.items()
    }
