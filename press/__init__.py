"""The press: everything that is derived from the chapters in book/."""
