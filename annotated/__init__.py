"""The paper's model, its training and its search, as the story tells them.
Read attention, masks, layers, embeddings and model; then tokens,
batches, loss, schedule and training; then search.

In the order of the book: seq2seq (01), attention (02), masks (03),
layers (05), embeddings (06), model (08), complexity (09), tokens (10),
batches (11), schedule (12), loss (13), training (14), checkpoints (15),
search (16), evaluation (18), alignment (19), parallel (21), costs (22),
variations (23), parsing (24), heads (25), since (26), cli (E12), checks
(E21).

Exported from the book; edit the chapter, then run `make export`.
"""

__all__ = ["__version__"]


# 00-preface.md: How cells become a package
__version__ = "0.1.0.dev0"
