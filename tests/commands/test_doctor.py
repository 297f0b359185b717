"""annotated doctor: what is in the way is found, named, and mended so."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from annotated.cli import dispatch
from annotated.commands import doctor
from annotated.commands.doctor import _folders, _packages, findings
from annotated.engine import machine
from annotated.engine.errors import RunError, UsageError
from tests.helpers import ROOT, environment


def marks(findings) -> dict[str, str]:
    return {found.what: found.mark for found in findings}


def test_here_nothing_is_in_the_way(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ANNOTATED_DATA", str(tmp_path / "not" / "yet"))
    dispatch(["doctor"])
    said = capsys.readouterr().out
    assert said.endswith("\nNothing is in the way.\n")
    for what in ("Python", "annotated", "packages", "torch", "precision"):
        assert f"\n✓ {what:20}" in "\n" + said
    assert not list(tmp_path.iterdir())  # looked at, not written to


def test_the_packages_own_requirements_are_read() -> None:
    named = " ".join(doctor._requirements())
    if not named:
        pytest.skip("the package is not installed, but run from its source")
    assert "torch>=2.3" in named and "seaborn" in named
    assert marks(_packages())["packages"] == "✓"


@pytest.mark.parametrize(
    ("line", "what", "mark", "words"),
    [
        ("numpy>=1.26", "packages", "✓", "all that is needed"),
        ("numpy", "packages", "✓", "all that is needed"),
        ("no-such.thing>=1", "packages", "✗", "missing: no-such.thing"),
        ("numpy>=999.1", "packages", "✗", "(from 999.1 on)"),
        ("numpy>=999,<1000", "packages", "✗", "(from 999 on)"),
        ('zebra>=1; extra == "zoo"', "extra [zoo]", "–", "missing: zebra"),
        ("zebra ; extra == 'zoo'", "extra [zoo]", "–", "missing: zebra"),
        ('numpy>=1; extra == "zoo"', "extra [zoo]", "✓", "installed"),
    ],
)
def test_a_requirement_is_judged(line, what, mark, words) -> None:
    [found] = [found for found in _packages([line]) if found.what == what]
    assert (found.mark, words in found.state) == (mark, True)
    assert (mark == "✓") == (not found.remedy)


def test_a_remedy_can_be_typed_and_names_what_there_is(monkeypatch) -> None:
    """In any shell: cmd takes single quotes as part of a name. The
    package itself may not be on an index."""
    lines = ["torch>=2", "numpy>=999", "zebra", 'yak>=1 ; extra == "zoo"']
    needed, extra = _packages(lines)
    assert needed.remedy == 'python -m pip install "numpy>=999" "zebra"'
    assert extra.remedy.endswith('python -m pip install "yak>=1"')
    for remedy in doctor._REMEDY.values():
        assert "'" not in remedy and "attention-annotated" not in remedy


def test_the_source_is_believed_before_an_old_installation(
    monkeypatch,
) -> None:
    """pip's notes of an editable installation are as old as it is."""
    monkeypatch.setattr(
        doctor.metadata, "requires", lambda name: ["tyro>=9"]
    )
    assert "tyro>=9" not in doctor._requirements()
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert all(f'"{r}"' in text for r in doctor._requirements()[:9])


def test_a_version_that_lies_is_found_by_loading(monkeypatch) -> None:
    """tyro 0.8 was once called fit: every subcommand ended at its import."""
    from annotated import cli

    def load(name):
        raise AttributeError("module 'tyro.conf' has no FlagCreatePairsOff")

    monkeypatch.setattr(cli, "load", load)
    found = marks(findings())
    assert found["subcommands"] == "✗"


def test_a_system_without_pytorch_is_named(monkeypatch) -> None:
    monkeypatch.setattr(doctor.sys, "platform", "darwin")
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    [found] = [f for f in doctor._pytorch() if f.what == "system"]
    assert "Colab" in found.remedy


def test_a_longer_version_is_not_an_older_one() -> None:
    """By numbers: 2.13 comes after 2.3, and 2.3.0+cpu is 2.3."""
    assert doctor._numbers("2.13.0+cpu") >= doctor._numbers("2.3")
    assert doctor._numbers("2.3.0") >= doctor._numbers("2.3")
    assert doctor._numbers("2.2.9") < doctor._numbers("2.3")


def test_it_runs_where_torch_does_not() -> None:
    program = textwrap.dedent(
        """
        import sys
        from annotated.cli import main

        class Broken:
            def find_spec(self, name, path=None, target=None):
                if name == "torch":
                    raise OSError("libtorch_cpu.so: cannot open")

        sys.meta_path.insert(0, Broken())
        sys.argv = ["annotated", "doctor"]
        main()
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment() | {"PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode == 2
    assert "✗ pytorch             OSError: libtorch_cpu.so" in done.stdout
    assert "→ python -m pip install" in done.stdout
    assert "✓ data" in done.stdout  # the others go on
    last = done.stderr.strip().splitlines()
    assert len(last) == 1 and last[0].endswith("see ✗ above")


def test_a_folder_that_cannot_be_written_is_in_the_way(monkeypatch) -> None:
    monkeypatch.setenv("ANNOTATED_DATA", "/proc/no/such/folder")
    if not Path("/proc").is_dir():
        pytest.skip("no folder that refuses everybody")
    [found] = _folders()
    assert found.mark == "✗" and "ANNOTATED_DATA" in found.remedy
    with pytest.raises(RunError, match="^one thing is in the way"):
        dispatch(["doctor"])


def test_little_memory_is_told_and_is_not_in_the_way(monkeypatch) -> None:
    monkeypatch.setattr(machine, "memory_bytes", lambda device: 2 * 2**30)
    found = {found.what: found for found in doctor._machine()}
    assert found["memory"].mark == "–" and found["memory"].remedy


def test_a_driver_without_a_gpu_in_torch_is_told(monkeypatch) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("torch sees the GPU")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/bin/{name}")
    assert marks(doctor._pytorch())["GPU"] == "–"


def test_an_examination_that_raises_is_a_finding(monkeypatch) -> None:
    def folders():
        raise ValueError("two\nlines")

    monkeypatch.setattr(doctor, "_folders", folders)
    *_, last = findings()
    assert (last.what, last.mark) == ("folders", "✗")
    assert last.state == "ValueError: two lines" and last.remedy


def test_what_is_set_is_shown(monkeypatch) -> None:
    monkeypatch.setenv("ANNOTATED_PRECISION", "float32")
    found = {found.what: found.state for found in findings()}
    assert found["ANNOTATED_PRECISION"] == "float32"
    assert found["precision"].startswith("float32: ANNOTATED_PRECISION")


def test_it_takes_no_options(capsys) -> None:
    with pytest.raises(UsageError, match="doctor takes no options"):
        dispatch(["doctor", "--all"])
    dispatch(["doctor", "--help"])
    assert capsys.readouterr().out.startswith("usage: annotated doctor")
