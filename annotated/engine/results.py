"""annotated.engine.results.

Exported from the book; edit the chapter, then run `make export`.

- 16-bleu-and-averaging.md: BLEU, and averaging
"""

import json
from importlib import resources
from typing import Any

__all__ = ["ledger"]


# 16-bleu-and-averaging.md: The ledger
def ledger() -> dict[str, dict[str, Any]]:
    """The runs that someone made, by name, as book/results has them."""
    file = resources.files("annotated") / "results.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}
