"""The pool of threads under the kernels: every piece once, and nobody busy for nothing."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import kernel_calls as call
import pytest
import torch

from model.native_library import KERNELS_FOLDER, NativeKernels, NativeUnavailableError

STRESS = Path(__file__).parents[1] / "support" / "thread_pool_stress.cpp"
_TASKS = Path("/proc/self/task")


@pytest.mark.parametrize("checked", [False, True], ids=["plain", "thread sanitizer"])
def test_every_piece_runs_once(tmp_path: Path, checked: bool) -> None:
    """Phases of all sizes, on pools of all sizes, lose no piece and repeat none."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / "stress"
    flags = ["-std=c++17", "-O1", "-g", "-pthread", f"-I{KERNELS_FOLDER}"]
    sources = [str(STRESS), str(KERNELS_FOLDER / "thread_pool.cpp")]
    sanitizer = ["-fsanitize=thread"] if checked else []
    build = [compiler, *flags, *sanitizer, *sources, "-o", str(program)]
    built = subprocess.run(build, capture_output=True, text=True, check=False)
    if checked and built.returncode:
        pytest.skip("the compiler has no thread sanitizer")
    assert built.returncode == 0, built.stderr
    run = subprocess.run([program], capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.skipif(not _TASKS.exists(), reason="needs /proc")
def test_a_pool_without_work_sleeps() -> None:
    """Once its work is done every thread of a pool falls asleep, and wakes for the next."""
    before = {task.name for task in _TASKS.iterdir()}
    try:
        kernels = NativeKernels("portable", threads=4)
    except NativeUnavailableError as error:
        pytest.skip(str(error))
    workers = {task.name for task in _TASKS.iterdir()} - before
    assert len(workers) == 3
    x, weight = torch.ones(64, 32), torch.ones(32)
    for _ in range(2):
        normed = call.rms_norm(kernels, x, weight, 1e-5)
        assert torch.equal(normed[0], normed[-1])
        while not all(_state(worker) == "S" for worker in workers):
            time.sleep(0.001)


def _state(task: str) -> str:
    """What the kernel says a thread is doing: S is asleep, R running or ready to."""
    return (_TASKS / task / "stat").read_text().rpartition(")")[2].split()[0]
