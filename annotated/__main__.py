"""Exported from the book; edit the chapter, then run `make export`."""

from annotated.cli import main

# E12-command-line.md: The program
if __name__ == "__main__":
    main()
