"""Exported from the book; edit the chapter, then run `make export`."""

__all__ = ["__version__"]


# 00-preface.md: How cells become a package
__version__ = "0.1.0.dev0"
