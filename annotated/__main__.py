"""annotated.__main__.

Exported from the book; edit the chapter, then run `make export`.

- A5-command-line.md: The command line
"""

from annotated.cli import main

# A5-command-line.md: Help, and what cannot be obeyed
if __name__ == "__main__":
    main()
