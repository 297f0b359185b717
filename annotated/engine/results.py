"""Exported from the book; edit the chapter, then run `make export`.

- E3-ground.md: The ground floor
"""

import json
from importlib import resources
from typing import Any

__all__ = ["ledger"]


# E3-ground.md: The ledger
def ledger() -> dict[str, dict[str, Any]]:
    """The runs that someone made, by name, as book/results has them."""
    file = resources.files("annotated") / "results.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}
