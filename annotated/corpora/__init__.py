"""A file becomes ids. Read reading, the one reader of text that a person
made, then cleaning, pairs, audit (what looks dirty) and prepare. The
modules registry and fetch know where a data set is, tokenizers and
sentencepieces cut its lines, segmentation cuts them anew, and treebanks
has the trees of chapter 24.

In the order of the book: registry (E7), fetch (E7), reading (E7), pairs
(E7), cleaning (E7), synthetic (E7), prepare (E8), tokenizers (E16),
segmentation (E16), sentencepieces (E16), torchtext (E16), treebanks
(E18), audit (E34), neighbours (E34).

Exported from the book; edit the chapter, then run `make export`.
"""
