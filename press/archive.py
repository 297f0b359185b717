"""The site and the notebooks as one file: they work where no network is."""

from __future__ import annotations

import zipfile
from pathlib import Path

from press.project import NAME
from press.site import site

# the same bytes whenever the same pages are put together
NEVER = 1980, 1, 1, 0, 0, 0


def archive(root: Path, out: Path) -> str:
    """Write the zip at `out`, after the site, if it is not current."""
    site(root)
    folders = [root / "site", root / "book" / "notebooks"]
    files = {
        f"{NAME}/{folder.name}/{path.relative_to(folder).as_posix()}": path
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    # a reader's copy of the paper may be in the site: it is not to go on
    words = f"{NAME}/site/_static/paper.js"
    if words in files:
        files[words] = root / "book" / "_static" / "paper.js"
    out.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(out, "w") as zipped:
        for name, path in files.items():
            info = zipfile.ZipInfo(name, NEVER)
            zipped.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)
    size = out.stat().st_size / 1e6
    return f"{out} holds {len(files)} files in {size:.1f} MB"
