"""Weights in and out. Read marian, what a published model's names, rows and
shapes are here; published, which makes a run of its folder, and hub,
which finds it by name; then export and transformers, the way back.

In the order of the book: export (E11), marian (E25), published (E25),
hub (E25), transformers (E25).

Exported from the book; edit the chapter, then run `make export`.
"""
