"""Exported from the book; edit the chapter, then run `make export`."""
