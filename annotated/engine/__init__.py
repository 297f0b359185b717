"""What trains and searches: the plain functions, made fast, large and safe.
To follow a training, read recipes, start, fit, runner, trainer and
micro; to follow a translation, runs, translate and search. Below them
are errors, files, processes and timing, which import nothing from above.

In the order of the book: hooks (E1), packing (E2), compiler (E2), errors
(E3), files (E3), processes (E3), tensors (E3), machine (E3), timing
(E3), distributed (E4), trainer (E5), micro (E5), optimizers (E5), search
(E6), mbr (E6), recipes (E9), fit (E9), speed (E9), data (E9), runs (E9),
translate (E9), start (E9), runner (E10), checkpoints (E10), log (E10),
parsing (E18), kernels (E31), parts (E32), baselines (E35), scoring
(E35), constraints (E39).

Exported from the book; edit the chapter, then run `make export`.
"""
