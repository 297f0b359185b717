"""Exported from the book; edit the chapter, then run `make export`."""

import os
import sys
from importlib import resources
from pathlib import Path
from typing import Any

from annotated.engine.errors import DataError
from annotated.engine.files import cache_folder

__all__ = ["registry", "data_folder", "folder_of"]


# E7-text.md: The registry
def registry() -> dict[str, Any]:
    """data/registry.toml: files, licence and splits, by name."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    file = resources.files("annotated") / "registry.toml"
    return tomllib.loads(file.read_text("utf-8"))


def data_folder() -> Path:
    """$ANNOTATED_DATA, or a folder in the user's cache. DataError for a
    user without a home.
    """
    chosen = os.environ.get("ANNOTATED_DATA") or cache_folder()
    if chosen is None:
        raise DataError(
            "this user has no home to keep data in: set ANNOTATED_DATA to "
            "a folder that you can write to"
        )
    return Path(chosen)


def folder_of(name: str) -> Path:
    """The folder with the files of a registered data set."""
    return data_folder() / registry()[name].get("folder", name)
