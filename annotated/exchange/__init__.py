"""Weights in and out. Read marian, which finds a published model by its
name, says what its names, rows and shapes are here, and makes a run of
its folder; then, the way back, export.

In the order of the book: export (E11), marian (E25).

Exported from the book; edit the chapter, then run `make export`.
"""
