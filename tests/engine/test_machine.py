"""What a container or a job may use: engine.machine, from page E3."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from annotated.corpora import registry
from annotated.engine import files, machine
from annotated.engine.errors import DataError
from annotated.engine.machine import _container_limit, cores, memory_bytes

GB = 2**30
# what /proc/self/cgroup says, the files of the groups, and what is allowed
CASES: dict[str, tuple[str, dict[str, str], float, float]] = {
    "no groups": ("", {}, math.inf, math.inf),
    "docker, version 2": (
        "0::/\n",
        {"cpu.max": "150000 100000\n", "memory.max": f"{2 * GB}\n"},
        1.5,
        2 * GB,
    ),
    "unlimited, version 2": (
        "0::/user.slice\n",
        {
            "user.slice/cpu.max": "max 100000\n",
            "user.slice/memory.max": "max\n",
        },
        math.inf,
        math.inf,
    ),
    "slurm, version 2: the narrowest counts": (
        "0::/system.slice/slurmstepd.scope/job_7/step_0/user\n",
        {
            "system.slice/cpu.max": "6400000 100000",
            "system.slice/slurmstepd.scope/job_7/cpu.max": "400000 100000",
            "system.slice/slurmstepd.scope/job_7/memory.max": f"{8 * GB}",
            "system.slice/slurmstepd.scope/job_7/step_0/memory.max": "max",
        },
        4,
        8 * GB,
    ),
    "slurm, version 1": (
        "11:memory:/slurm/uid_1/job_7/step_0\n"
        "5:cpu,cpuacct:/slurm/uid_1/job_7\n0::/\n",
        {
            "memory/slurm/uid_1/job_7/memory.limit_in_bytes": f"{4 * GB}\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "cpu,cpuacct/slurm/uid_1/job_7/cpu.cfs_quota_us": "300000\n",
            "cpu,cpuacct/slurm/uid_1/job_7/cpu.cfs_period_us": "100000\n",
        },
        3,
        4 * GB,
    ),
    "docker, version 1: the path is the host's": (
        "4:memory:/docker/abc\n3:cpuset:/docker/abc\n1:cpu:/docker/abc\n",
        {
            "memory/memory.limit_in_bytes": f"{GB}\n",
            "cpu/cpu.cfs_quota_us": "-1\n",
            "cpu/cpu.cfs_period_us": "100000\n",
        },
        math.inf,
        GB,
    ),
    "version 2 beside version 1": (
        "4:memory:/\n0::/a\n",
        {"unified/a/cpu.max": "50000 100000\n"},
        0.5,
        math.inf,
    ),
}


@pytest.fixture(params=CASES)
def limits(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[float, float]:
    groups, files, cpu, memory = CASES[request.param]
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "self").write_text(groups)
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "self")
    return cpu, memory


def test_the_limits_of_a_container_are_found(
    limits: tuple[float, float],
) -> None:
    assert (_container_limit("cpu"), _container_limit("memory")) == limits


def test_a_process_has_no_more_than_its_container(
    limits: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda _: range(64), raising=False
    )
    assert cores() == max(1, int(min(64, limits[0])))
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 256 * GB // 4096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__, raising=False)
    assert memory_bytes("cpu") == min(256 * GB, limits[1])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert memory_bytes("cpu") == min(256 * GB, limits[1]) / 4


def test_a_group_may_have_a_space_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "cgroup" / "My App.scope"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("200000 100000\n")
    (tmp_path / "self").write_text("0::/My App.scope\n")
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "self")
    assert _container_limit("cpu") == 2


def test_what_was_evaluating_before_still_is() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout())
    model[1].eval()
    with machine.evaluating(model):
        assert not any(part.training for part in model.modules())
    assert [part.training for part in model.modules()] == [
        True, True, False,
    ]  # fmt: skip


def test_where_there_are_no_groups_nothing_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "nothing")
    assert _container_limit("cpu") == _container_limit("memory") == math.inf


FAULTS = """
import resource
import torch
from annotated.engine.machine import keep_freed_memory

def faults():
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        kept = [torch.zeros(2**18) for _ in range(128)]
        del kept
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults())
keep_freed_memory()
print(faults())
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="another C library"
)
def test_what_a_tensor_has_freed_serves_the_next_one():
    done = subprocess.run(
        [sys.executable, "-c", FAULTS],
        capture_output=True,
        text=True,
        check=True,
        env={k: v for k, v in os.environ.items() if "MALLOC" not in k},
    )
    before, after = map(int, done.stdout.split())
    assert after < before / 10


@pytest.mark.parametrize("answer", ["~/.cache/annotated", RuntimeError])
def test_a_user_without_a_home_measures_and_is_told(
    answer, monkeypatch, tmp_path
) -> None:
    """Containers, cron and Slurm have such users; platformdirs raises for
    them, or returns a path that begins with ~."""

    def folder(name: str) -> str:
        if answer is RuntimeError:
            raise RuntimeError("Could not determine home directory.")
        return answer

    monkeypatch.setattr(files.platformdirs, "user_cache_dir", folder)
    monkeypatch.chdir(tmp_path)
    for name in ("ANNOTATED_MEASURED", "ANNOTATED_DATA"):
        monkeypatch.delenv(name, raising=False)
    assert machine.cached("x", {}, lambda: (1.5, True)) == 1.5
    with pytest.raises(DataError, match="no home .* set ANNOTATED_DATA"):
        registry.data_folder()
    assert not list(tmp_path.iterdir())
