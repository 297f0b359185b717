"""Exported from the book; edit the chapter, then run `make export`."""

import json
import re
from itertools import chain
from pathlib import Path

from annotated.corpora.fetch import file_hash
from annotated.corpora.sentencepieces import optional_import
from annotated.engine.errors import RunError
from annotated.exchange.marian import (
    SETTINGS,
    SHARDS,
    TARGET_VOCAB,
    TEXTS,
    WEIGHTS,
    pieces_of,
)

__all__ = ["find_published"]


# E25-published-weights.md: By name
_OWNER = "Helsinki-NLP"  # of the names without a slash
_PUBLISHED = {  # its revision, and the SHA-256 of pytorch_model.bin there
    f"{_OWNER}/opus-mt-en-de": (
        "6183067f769a302e3861815543b9f312c71b0ca4",
        "",
    ),
    f"{_OWNER}/opus-mt-de-en": (
        "1a922f3b32a8e809e17a47d4b32142d8105924e5",
        "e743c3070f61f477cb62fe95ef2c9be2e77f3e488cb6b8030ff8a19e8295c87d",
    ),
    f"{_OWNER}/opus-mt-es-en": (
        "c96e2c5399ebfae4fc43d9669556b9afa74bb69d",
        "",
    ),
}


def find_published(
    name: str, revision: str | None = None
) -> tuple[Path, str]:
    """The folder of a published model, fetched if name is not a folder,
    and where it is from. revision is a commit or a branch; unless given,
    the one listed above, or the newest. RunError, with what to do, if it is
    not there, or is not what was published.
    """
    if Path(name).is_dir():
        return Path(name), str(Path(name))
    if Path(name).exists():
        raise RunError(f"{name} is a file: give the folder that it is in")
    if not re.fullmatch(r"([\w.-]+/)?[\w.-]+", name) or name[0] in "./":
        raise RunError(
            f"{name} is neither a folder nor the name of a model"
        )
    full = name if "/" in name else f"{_OWNER}/{name}"
    pinned, known = _PUBLISHED.get(full, ("main", ""))
    revision = revision or pinned
    folder, unread = _fetched(full, revision)
    if unread:
        raise RunError(
            f"{full} could not be fetched ({unread}): download "
            f"{', '.join(TEXTS)}, {' or '.join(WEIGHTS)}, and, if they are "
            f"there, {', '.join((*SETTINGS, TARGET_VOCAB))} from "
            f"https://huggingface.co/{full}/tree/{revision} into a folder "
            f"{name}, and give the command again"
        )
    weights = folder / WEIGHTS[1]
    check = known and revision == pinned and weights.is_file()
    if check and (actual := file_hash(weights)) != known:
        raise RunError(
            f"{weights} is not the file that was published: its SHA-256 is "
            f"{actual}, not {known}. Delete it to fetch it again"
        )
    return folder, f"{full} at {folder.name}"


def _listed(index: Path) -> list[str]:
    """The files that an index of weights names."""
    try:
        return pieces_of(json.loads(index.read_bytes())["weight_map"])
    except (ValueError, TypeError, KeyError):
        return []  # read_published says what is wrong


def _fetched(name: str, revision: str) -> tuple[Path, str]:
    """The folder of a model in the cache, all of it at one revision; or
    why there is none.
    """
    hub = optional_import("huggingface_hub")
    folder, log = Path(), optional_import("huggingface_hub.utils").logging
    level = log.get_verbosity()
    log.set_verbosity_error()  # or it tells each attempt without a network
    try:
        files = [*TEXTS, *SETTINGS, TARGET_VOCAB]
        files += chain(*zip(WEIGHTS, SHARDS))
        while files:
            file = files.pop(0)
            try:
                got = hub.hf_hub_download(name, file, revision=revision)
            except hub.errors.LocalEntryNotFoundError:
                raise  # no network, which is another matter
            except hub.errors.EntryNotFoundError:
                continue  # read_published says what is needed
            folder = Path(got).parent
            revision = folder.name  # the same for all files
            if file in WEIGHTS + SHARDS:  # no other form is needed
                files = _listed(Path(got)) if file in SHARDS else []
    except Exception as error:  # of the network, of the server, of a name
        said = " ".join(str(error).split())[:120].rstrip(" .:")
        return folder, said or type(error).__name__
    finally:
        log.set_verbosity(level)
    return folder, "" if folder != Path() else "it has no files"
