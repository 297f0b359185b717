"""Page E25: a published model becomes a run, from a folder or by its name."""

from __future__ import annotations

import io
import json
import logging
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from annotated.cli import main
from annotated.corpora.fetch import file_hash
from annotated.engine.errors import RunError
from annotated.engine.runs import Run
from annotated.exchange import marian
from annotated.exchange.export import export_run
from annotated.exchange.marian import (
    Published,
    find_published,
    import_marian,
)
from annotated.tokens import BOS, EOS
from tests.exchange.published import (
    ENGLISH,
    GERMAN,
    edit,
    in_pieces,
    publish,
    spm,
    transformers,
)
from tests.helpers import content, environment


@pytest.mark.parametrize(
    ("asked", "alpha"),
    [
        ({}, 1.0),
        ({"length_penalty": 0.4}, 0.4),
        ({"length_penalty": 0}, 0.0),
    ],
)
def test_the_published_length_penalty_is_the_run_s(
    folder: Path, tmp_path: Path, asked: dict[str, float], alpha: float
) -> None:
    edit(folder / "generation_config.json", **asked)
    run = import_marian(folder, tmp_path / "run")
    assert run.recipe.search.alpha == alpha


def test_what_is_imported_is_a_run(folder: Path, tmp_path: Path) -> None:
    run = import_marian(folder, tmp_path / "run")
    recipe = run.recipe
    assert (recipe.source, recipe.target) == ("de", "en")
    assert (recipe.search.beam, recipe.search.limit) == (3, 39)
    said = [best[0].text for best in run.translate(GERMAN[:20])]
    assert len(set(said)) > 3
    # averaging, ensembles and export take it as they take any run
    twice = Run.open(tmp_path / "run", tmp_path / "run")
    assert [best[0].text for best in twice.translate(GERMAN[:20])] == said
    export_run(run, "safetensors", tmp_path / "small")
    again = Run.open(tmp_path / "small")
    assert [best[0].text for best in again.translate(GERMAN[:20])] == said
    maps = run.model.attention_maps(
        torch.tensor([[4, 5, EOS]]), torch.tensor([[BOS, 6]])
    )
    assert maps["cross.1"].shape == (1, 4, 2, 3)
    card = json.loads((tmp_path / "run" / "imported.json").read_text())
    assert set(card["sha256"]) >= {
        "config.json",
        "model.safetensors",
        "source.spm",
    }


def test_models_with_other_tokens_cannot_vote(
    folder: Path, tmp_path: Path, models: Any
) -> None:
    publish(tmp_path / "n", (models[0], spm(ENGLISH, 80)))
    for name, path in (("m", folder), ("n", tmp_path / "n")):
        import_marian(path, tmp_path / f"run-{name}")
    with pytest.raises(RunError, match="cannot vote together"):
        Run.open(tmp_path / "run-m", tmp_path / "run-n")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_of_tensors_is_read_as_well(
    zipped: bool, folder: Path
) -> None:
    """Files of 2020 have the form that torch had before it used archives."""
    weights = load_file(folder / "model.safetensors")
    before = Published.read(folder).weights
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save(weights, path, _use_new_zipfile_serialization=zipped)
    assert path.read_bytes().startswith(b"PK") == zipped
    after = Published.read(folder).weights
    assert before.keys() == after.keys()
    assert all(torch.equal(before[n], after[n]) for n in before)


@pytest.mark.parametrize("form", ["model.safetensors", "pytorch_model.bin"])
def test_weights_in_several_files_are_read_as_well(
    form: str, folder: Path, tmp_path: Path
) -> None:
    before = Published.read(folder).weights
    names = in_pieces(folder, form)
    run = import_marian(folder, tmp_path / "run")
    after = run.model.state_dict()
    assert all(torch.equal(before[n].float(), after[n]) for n in before)
    card = json.loads((tmp_path / "run" / "imported.json").read_text())
    assert {*names, f"{form}.index.json"} <= card["sha256"].keys()


def test_weights_in_16_bits_become_float32(
    folder: Path, tmp_path: Path
) -> None:
    weights = load_file(folder / "model.safetensors")
    half = {n: x.half() for n, x in weights.items()}
    save_file(half, folder / "model.safetensors")
    run = import_marian(folder, tmp_path / "run")
    assert run.model.embeddings.target.dtype == torch.float32


def test_a_config_may_begin_with_a_mark_of_windows(
    folder: Path, tmp_path: Path
) -> None:
    path = folder / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    import_marian(folder, tmp_path / "run")


def test_positions_in_the_file_have_to_be_sinusoids(folder: Path) -> None:
    path, name = (
        folder / "model.safetensors",
        "model.encoder.embed_positions.weight",
    )
    weights = load_file(path)
    model = transformers.MarianMTModel.from_pretrained(folder)
    waves = model.model.encoder.embed_positions.weight.detach()[:64].clone()
    save_file(weights | {name: waves}, path)
    Published.read(folder)
    waves[3, 5] += 0.1
    save_file(weights | {name: waves}, path)
    with pytest.raises(RunError, match=f"{name} has no sinusoids"):
        Published.read(folder)


def annotated(
    line: str, monkeypatch: pytest.MonkeyPatch, stdin: str = ""
) -> int:
    """Run a command line; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["annotated", *line.split()])
    text = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    monkeypatch.setattr(sys, "stdin", text)
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_it_is_imported_used_and_scored_from_a_shell(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    ask = partial(annotated, monkeypatch=monkeypatch)
    assert ask(f"import marian {folder} --out run") == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["source"], said["target"]) == ("de", "en")
    lines = "".join(f"{line}\n" for line in GERMAN[:3])
    use = "--run run --workers 1 --precision float32"
    assert ask(f"translate {use}", stdin=lines) == 0
    texts = capfd.readouterr().out.splitlines()
    assert len(texts) == 3 and any(texts)
    (tmp_path / "src").write_text(lines)
    (tmp_path / "ref").write_text("\n".join(texts) + "\n")
    assert ask(f"evaluate {use} --src src --ref ref --json") == 0
    assert json.loads(capfd.readouterr().out)["exact_match"] == 100.0
    assert ask(f"evaluate {use} --split test") == 2
    assert "give --data" in capfd.readouterr().err


def test_a_refusal_is_one_line_and_exit_code_2(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
) -> None:
    edit(folder / "config.json", model_type="bart")
    before = content(tmp_path)
    assert (
        annotated(
            f"import marian {folder} --out {tmp_path}/run", monkeypatch
        )
        == 2
    )
    said = capfd.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith("annotated: ") and "model_type" in said.err
    assert content(tmp_path) == before


@pytest.fixture
def asked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, str, str]]:
    """What a hub, which has folder's files under every name, is asked for:
    name, file, revision.
    """
    hub = pytest.importorskip("huggingface_hub")
    found: list[tuple[str, str, str]] = []

    def download(name: str, file: str, revision: str) -> str:
        found.append((name, file, revision))
        if not (folder / file).exists():
            raise hub.errors.EntryNotFoundError(file)
        place = tmp_path / "cache" / revision.replace("main", "abc123")
        place.mkdir(parents=True, exist_ok=True)
        return str(shutil.copy(folder / file, place / file))

    monkeypatch.setattr(hub, "hf_hub_download", download)
    return found


def test_a_name_is_fetched_at_one_revision(
    asked: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    found, origin = find_published("opus-mt-fr-en")
    assert (found, origin) == (
        tmp_path / "cache" / "abc123",
        "Helsinki-NLP/opus-mt-fr-en at abc123",
    )
    assert {name for name, _, _ in asked} == {"Helsinki-NLP/opus-mt-fr-en"}
    # the branch is asked for once, and then the commit that it was
    assert [revision for _, _, revision in asked] == ["main"] + [
        "abc123"
    ] * (len(asked) - 1)
    assert "pytorch_model.bin" not in [file for _, file, _ in asked]
    run = import_marian(found, tmp_path / "run", origin=origin)
    assert (
        run.recipe.about
        == "imported from Helsinki-NLP/opus-mt-fr-en at abc123"
    )


def test_pieces_are_fetched_as_their_list_says(
    asked: list[tuple[str, str, str]], folder: Path, tmp_path: Path
) -> None:
    names = in_pieces(folder)
    found, _ = find_published("opus-mt-fr-en")
    files = [file for _, file, _ in asked]
    assert files[-4:] == ["model.safetensors.index.json", *names]
    import_marian(found, tmp_path / "run")


@pytest.mark.parametrize("pair", ["en-de", "de-en", "es-en"])
def test_some_have_a_revision_of_their_own(
    pair: str, asked: list[tuple[str, str, str]]
) -> None:
    name = f"Helsinki-NLP/opus-mt-{pair}"
    revision, _ = marian._PUBLISHED[name]
    assert len(revision) == 40
    for said in (name, f"opus-mt-{pair}"):
        assert find_published(said)[1] == f"{name} at {revision}"
    assert {r for _, _, r in asked} == {revision}
    assert find_published(name, "main")[1] == f"{name} at abc123"


def test_weights_with_another_hash_are_refused(
    asked: list[tuple[str, str, str]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "Helsinki-NLP/opus-mt-de-en"
    path = folder / "pytorch_model.bin"
    torch.save(load_file(folder / "model.safetensors"), path)
    (folder / "model.safetensors").unlink()
    assert marian._PUBLISHED[name][1]
    with pytest.raises(
        RunError, match="is not the file that was published"
    ):
        find_published(name)
    find_published(name, "main")  # of which no hash is known
    with pytest.raises(RunError, match="'' is neither a folder"):
        find_published("")
    known = {name: ("abc", file_hash(path))}
    monkeypatch.setattr(marian, "_PUBLISHED", known)
    find_published(name)


@pytest.mark.parametrize("pair", ["en-de", "fr-en"])
def test_without_a_network_it_says_what_to_download(
    pair: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    log = logging.getLogger("huggingface_hub.utils._http")

    def download(*args: Any, **more: Any) -> str:
        log.warning("Retrying in 8 s")  # as the library does, five times
        raise ConnectionError("no route to\nhost. ")

    monkeypatch.setattr(hub, "hf_hub_download", download)
    with pytest.raises(RunError) as refusal:
        find_published(f"opus-mt-{pair}")
    said = str(refusal.value)
    assert "(no route to host)" in said and "\n" not in said
    assert not caplog.records
    for name in (
        "config.json",
        "source.spm",
        "target.spm",
        "vocab.json",
        "model.safetensors",
        "pytorch_model.bin",
    ):
        assert name in said
    model = f"Helsinki-NLP/opus-mt-{pair}"
    revision = marian._PUBLISHED.get(model, ("main", ""))[0]
    assert f"https://huggingface.co/{model}/tree/{revision} " in said
    assert said.endswith(
        f"into a folder opus-mt-{pair}, and give the command again"
    )


def test_offline_it_is_one_line_in_a_process_of_its_own(
    tmp_path: Path,
) -> None:
    pytest.importorskip("huggingface_hub")
    words = ["import", "marian", "opus-mt-en-de", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "annotated", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "hub")),
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("annotated: Helsinki-NLP/opus-mt-en-de")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_folder_that_it_names_is_then_taken(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert find_published(folder.name) == (Path(folder.name), folder.name)


@pytest.mark.parametrize(
    "name", ["./nowhere", "a/b/c", "/nowhere/at/all", "x y"]
)
def test_what_is_no_name_is_not_asked_for(name: str) -> None:
    with pytest.raises(
        RunError, match="neither a folder nor the name of a model"
    ):
        find_published(name)


def test_a_file_is_not_the_name_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("afile").write_text("not a model")
    monkeypatch.setattr(marian, "_fetched", None)  # nothing is asked for
    with pytest.raises(RunError, match="afile is a file: give the folder"):
        find_published("afile")
