"""The limits of this process are read from the control group, not from the host."""

from pathlib import Path

import pytest

from server.engine.planning.resources import available_memory, cpu_count

GIB = 2**30


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A made-up machine with 16 processors and 64 GiB free, and a way to add files to it."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(16)), raising=False)

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return tmp_path

    write({"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {64 * GIB // 1024} kB"})
    return write


def test_affinity_counts_without_a_group(system):
    """Without control groups the affinity mask says how many threads can run."""
    assert cpu_count(system({})) == 16


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("max 100000", 16)],
)
def test_quota_of_version_2(system, quota, expected):
    """A CPU quota cuts the count, rounded up, and never below one."""
    root = system({"proc/self/cgroup": "0::/pod/app", "sys/fs/cgroup/pod/app/cpu.max": quota})
    assert cpu_count(root) == expected


def test_quota_of_a_parent_group_counts(system):
    """The tightest quota on the way to the root wins."""
    root = system(
        {
            "proc/self/cgroup": "0::/pod/app",
            "sys/fs/cgroup/pod/app/cpu.max": "800000 100000",
            "sys/fs/cgroup/pod/cpu.max": "300000 100000",
        }
    )
    assert cpu_count(root) == 3


def test_quota_seen_from_inside_a_container(system):
    """A path that does not exist here still leads to the container's own root group."""
    root = system({"proc/self/cgroup": "0::/docker/abc", "sys/fs/cgroup/cpu.max": "400000 100000"})
    assert cpu_count(root) == 4


def test_quota_of_version_1(system):
    """The older layout, with one tree for each controller, is read too."""
    group = "sys/fs/cgroup/cpu/app/"
    root = system(
        {
            "proc/self/cgroup": "4:memory:/app\n2:cpu,cpuacct:/app",
            group + "cpu.cfs_quota_us": "250000",
            group + "cpu.cfs_period_us": "100000",
        }
    )
    assert cpu_count(root) == 3


def test_memory_is_what_the_machine_has_free(system):
    """Without a limit the kernel's own estimate counts."""
    assert available_memory(system({})) == 64 * GIB


def test_memory_limit_leaves_what_is_not_used(system):
    """A limit leaves what is not used yet, and file cache that can be given up is not used."""
    root = system(
        {
            "proc/self/cgroup": "0::/app",
            "sys/fs/cgroup/app/memory.max": str(8 * GIB),
            "sys/fs/cgroup/app/memory.current": str(3 * GIB),
            "sys/fs/cgroup/app/memory.stat": f"anon 5\ninactive_file {GIB}",
        }
    )
    assert available_memory(root) == 6 * GIB


def test_memory_limit_of_version_1(system):
    """The older layout's names are read too."""
    root = system(
        {
            "proc/self/cgroup": "4:memory:/app",
            "sys/fs/cgroup/memory/app/memory.limit_in_bytes": str(4 * GIB),
            "sys/fs/cgroup/memory/app/memory.usage_in_bytes": str(1 * GIB),
        }
    )
    assert available_memory(root) == 3 * GIB
