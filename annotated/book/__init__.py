"""What only pages need, installed with the extra [book]: drawings, and
figures that move; the running example; the ledger of results; a run's
report; the reader's own copy of the paper.

In the order of the book: baselines (20), plots (E1), scripts (E1),
figures (E1), guesses (E1), streams (E1), results (E3), counters (E3),
example (E15), tree_plots (E18), sweep (E19), report (E24), look (E27),
portable (E27), paper (E28), colors (E36).

Exported from the book; edit the chapter, then run `make export`.
"""
