"""The site and the notebooks as one file: they work where no network is."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from press import files
from press.notebooks import expected_notebooks
from press.project import NAME
from press.site import site

# the same bytes whenever the same pages are put together
NEVER = 1980, 1, 1, 0, 0, 0


def archive(root: Path, out: Path) -> str:
    """Write the zip at `out`, after the site, if it is not current."""
    site(root)
    held = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted((root / "site").rglob("*"))
        if path.is_file()
    }
    # a reader's copy of the paper may be in the site: it is not to go on
    words = "site/_static/paper.js"
    if words in held:
        held[words] = (root / "book" / "_static" / "paper.js").read_bytes()
    # as the pages are now, and without what Jupyter keeps beside them
    for path, text in sorted(expected_notebooks(root).items()):
        name = path.relative_to(root / "book").as_posix()
        held[name] = text.encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as zipped:
        for name, data in held.items():
            info = zipfile.ZipInfo(f"{NAME}/{name}", NEVER)
            zipped.writestr(info, data, zipfile.ZIP_DEFLATED)
    files.replace(out, packed.getvalue())
    size = out.stat().st_size / 1e6
    return f"{out} holds {len(held)} files in {size:.1f} MB"
