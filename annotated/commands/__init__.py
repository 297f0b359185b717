"""The subcommands of annotated, a module for each family, so that a command
loads only what it needs; annotated.cli finds them.

In the order of the book: back (E8), options (E12), data (E12), train
(E12), translate (E12), evaluate (E12), average (E12), pages (E12),
exchange (E12), trees (E12), completion (E12), doctor (E23), score (E35),
serve (E37), adapt (E38).

Exported from the book; edit the chapter, then run `make export`.
"""
