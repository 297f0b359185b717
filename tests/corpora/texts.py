"""Files of text, for the tests of this folder."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def packed(folder: Path, suffix: str, members: dict[str, bytes]) -> Path:
    """An archive with these members, and one more."""
    path = folder / f"archive{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return path
    with tarfile.open(path, "w:gz" if suffix == ".tgz" else "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path
