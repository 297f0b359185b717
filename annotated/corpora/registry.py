"""Exported from the book; edit the chapter, then run `make export`."""

import os
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import platformdirs

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
    """$ANNOTATED_DATA, or a folder in the user's cache."""
    chosen = os.environ.get("ANNOTATED_DATA")
    return Path(chosen or platformdirs.user_cache_dir("annotated"))


def folder_of(name: str) -> Path:
    """The folder with the files of a registered data set."""
    return data_folder() / registry()[name].get("folder", name)
