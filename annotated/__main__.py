"""annotated.__main__.

Exported from the book; edit the chapter, then run `make export`.

- A5-command-line.md: The command line
"""

import os


# A5-command-line.md: Help, and what cannot be obeyed
def main() -> None:
    """annotated.cli.main, with threads that do not spin for long."""
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("KMP_BLOCKTIME", "1")
    from annotated import cli  # which imports torch

    cli.main()


if __name__ == "__main__":
    main()
