"""Hosts as their files describe them: constructed trees of machines that are not here."""

import os
from pathlib import Path

import pytest
from host_tree import plant

from weft.errors import InputError
from weft.host.machine.cpu import pick_cpus, read_processors, read_steal_s
from weft.host.machine.devices import find_numa_node, list_interfaces, list_rdma_devices
from weft.host.machine.examination import (
    HostNoise,
    check_cpus,
    check_devices,
    check_interfaces,
    check_memory,
    check_noise,
    choose_cpu_pairs,
    describe_relation,
    parse_transparent_mode,
    read_memory,
)
from weft.host.machine.kernel_files import read_cpu_limit, read_memory_limit_bytes
from weft.records import Histogram


@pytest.fixture
def mlx5(tmp_path: Path) -> Path:
    return plant("mlx5", tmp_path)


@pytest.fixture
def efa(tmp_path: Path) -> Path:
    return plant("efa", tmp_path)


# ---- Processors -------------------------------------------------------------------------------


def test_processors_of_a_two_socket_host(mlx5):
    host = read_processors(mlx5)
    assert host.model == "Intel(R) Xeon(R) Gold 6244 CPU @ 3.60GHz"
    assert host.online == host.allowed == tuple(range(16))
    assert host.isolated == (6, 7, 14, 15)
    assert host.cores == tuple(range(8))
    assert host.nodes == {0: (0, 1, 2, 3, 8, 9, 10, 11), 1: (4, 5, 6, 7, 12, 13, 14, 15)}
    assert set(host.governors) == {"powersave", "performance"}
    assert host.virtual is False
    assert host.cpu_limit is None


def test_processors_of_an_arm_host_in_a_container(efa):
    host = read_processors(efa)
    assert host.model == "Arm part 0xd40"
    assert host.allowed == (0, 2, 3)
    assert host.isolated == ()
    assert host.governors == {}
    assert host.virtual is None
    assert host.cpu_limit == 1.5


def test_a_host_without_any_file_has_no_processors_and_no_devices(tmp_path):
    assert read_processors(tmp_path).online == ()
    assert list_rdma_devices(tmp_path) == list_interfaces(tmp_path) == ()
    assert read_memory(tmp_path).memlock_bytes is None
    assert read_steal_s(tmp_path) == {}


def test_steal_is_the_eighth_column_in_ticks_and_none_where_a_kernel_has_fewer(efa):
    assert read_steal_s(efa) == {0: 10 / os.sysconf("SC_CLK_TCK")}
    (efa / "proc/stat").write_text("cpu  1 2 3 4\ncpu0 1 2 3 4\n")
    assert read_steal_s(efa) == {0: 0.0}


# ---- Which CPUs to spin on --------------------------------------------------------------------


def test_cpus_are_cores_of_the_devices_node_isolated_ones_first(mlx5):
    placement = pick_cpus(4, "mlx5_0", mlx5)
    assert placement.cpus == (6, 7, 4, 5)
    assert placement.warnings == ()


def test_without_a_device_the_first_core_comes_last(mlx5):
    assert pick_cpus(8, root=mlx5).cpus == (6, 7, 1, 2, 3, 4, 5, 0)


def test_more_threads_than_cores_of_the_node_cross_to_the_other_with_a_warning(mlx5):
    placement = pick_cpus(5, "ib0", mlx5)
    assert placement.cpus == (6, 7, 4, 5, 1)
    (warning,) = placement.warnings
    assert warning.startswith("CPUs 1 are not on NUMA node 1 of ib0")


def test_more_threads_than_cores_share_them_with_a_warning(mlx5):
    placement = pick_cpus(9, root=mlx5)
    assert len(set(placement.cpus)) == 9
    assert "9 spinning threads share 8 cores" in placement.warnings[0]


def test_more_threads_than_cpus_are_refused(mlx5):
    with pytest.raises(InputError, match=r"17 spinning threads, but 16 CPUs \(0-15\)"):
        pick_cpus(17, root=mlx5)


def test_a_cpu_quota_below_the_threads_is_told(efa):
    placement = pick_cpus(2, "rdmap0s6", efa)
    assert placement.cpus == (2, 3)
    assert "a cgroup limits this process to 1.5 CPUs" in placement.warnings[0]


def test_an_unknown_device_is_refused_with_the_known_ones(mlx5):
    with pytest.raises(InputError, match="use one of mlx5_0, mlx5_1, "):
        pick_cpus(1, "mlx4_0", mlx5)


def test_pairs_of_cpus_begin_with_one_of_each_relation(mlx5):
    host = read_processors(mlx5)
    pairs = choose_cpu_pairs(host)
    assert len(pairs) == 15
    relations = [describe_relation(host, *pair) for pair in pairs[:3]]
    assert sorted(relations) == ["node 0", "nodes 0 and 1", "one core"]


# ---- Memory -----------------------------------------------------------------------------------


def test_memory_of_a_host_with_huge_pages_and_a_low_memlock(mlx5):
    result = read_memory(mlx5)
    assert result.total_bytes == 196608000 * 1024
    assert (result.huge_total, result.huge_free) == (1024, 512)
    assert result.transparent == "madvise"
    assert result.memlock_bytes == 65536
    assert not result.may_exceed_memlock
    assert result.cgroup_limit_bytes is None


def test_the_tightest_limit_on_the_way_to_the_root_holds(efa):
    assert read_memory(efa).memlock_bytes is None
    assert read_memory_limit_bytes(efa) == 8 * 2**30
    assert read_cpu_limit(efa) == 1.5


def test_limits_of_the_first_cgroup_version_are_read(tmp_path):
    files = {
        "proc/self/cgroup": "4:memory:/job\n1:cpu,cpuacct:/job\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "1048576\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    assert read_memory_limit_bytes(tmp_path) == 1048576
    assert read_cpu_limit(tmp_path) == 2.0


@pytest.mark.parametrize(
    ("line", "mode"), [("[always] madvise never", "always"), ("x", ""), ("", "")]
)
def test_the_mode_of_transparent_pages_is_the_word_in_brackets(line, mode):
    assert parse_transparent_mode(line) == mode


# ---- Devices ----------------------------------------------------------------------------------


def test_rdma_devices_with_ports_node_and_bus(mlx5):
    hdr, roce = list_rdma_devices(mlx5)
    assert (hdr.name, hdr.driver, hdr.firmware, hdr.numa_node) == (
        "mlx5_0",
        "mlx5_core",
        "20.31.1014",
        1,
    )
    assert (hdr.pcie, hdr.pcie_most) == ("8.0 GT/s x16", "16.0 GT/s x16")
    assert hdr.interfaces == ("ib0", "ib0.8001")
    (port,) = hdr.ports
    assert port.is_active
    assert (port.rate, port.link_layer, port.lid) == ("200 Gb/sec (4X HDR)", "InfiniBand", 26)
    assert [p.is_active for p in roce.ports] == [False]


def test_an_efa_device_without_a_node_or_a_lid(efa):
    (device,) = list_rdma_devices(efa)
    assert (device.driver, device.numa_node) == ("efa", None)
    assert device.ports[0].link_layer == "Unspecified"
    assert find_numa_node("eth0", efa) is None


def test_interfaces_by_kind_and_ipoib_by_mode(mlx5):
    result = {interface.name: interface for interface in list_interfaces(mlx5)}
    assert {name: i.kind for name, i in result.items()} == {
        "br0": "virtual",
        "enp3s0": "ethernet",
        "ib0": "ipoib",
        "ib0.8001": "ipoib",
        "lo": "loopback",
    }
    assert (result["ib0"].ipoib_mode, result["ib0"].mtu_bytes) == ("connected", 65520)
    assert (result["ib0.8001"].ipoib_mode, result["ib0.8001"].mtu_bytes) == ("datagram", 2044)
    assert result["enp3s0"].speed_mbps is None
    assert result["ib0"].numa_node == 1


# ---- Findings ---------------------------------------------------------------------------------


def test_what_spoils_measurements_on_the_mlx5_host_is_found(mlx5):
    devices = list_rdma_devices(mlx5)
    result = [
        *check_cpus(read_processors(mlx5)),
        *check_memory(read_memory(mlx5), "2M", devices),
        *check_devices(devices),
        *check_interfaces(list_interfaces(mlx5)),
    ]
    assert [finding.what for finding in result] == [
        "governor powersave on CPUs 0-3,8-11",
        "only 64 KiB may be locked in memory",
        "mlx5_0 runs at PCIe 8.0 GT/s x16, but can do 16.0 GT/s x16",
        "mlx5_1 port 1 is DOWN (Disabled)",
        "ib0.8001 is IPoIB in datagram mode, MTU 2044",
    ]
    assert all(finding.effect and finding.remedy for finding in result)


def test_a_low_memlock_does_not_bind_who_may_exceed_it(mlx5):
    status = mlx5 / "proc/self/status"
    status.write_text(status.read_text().replace("0000000000000000", "0000000000004000"))
    assert read_memory(mlx5).may_exceed_memlock
    assert list(check_memory(read_memory(mlx5), "2M", list_rdma_devices(mlx5))) == []


def test_a_low_memlock_matters_only_where_there_is_rdma(mlx5):
    assert list(check_memory(read_memory(mlx5), "2M", ())) == []
    (finding,) = check_memory(read_memory(mlx5), "4K", ())
    assert finding.what == "message buffers get 4 KiB pages"


@pytest.mark.parametrize(
    ("gaps_us", "watched_ns", "is_noisy"),
    [([], 10**9, False), ([50], 10**9, False), ([2_000], 10**11, True), ([50] * 300, 10**9, True)],
)
def test_a_host_is_noisy_if_it_loses_much_time_or_much_at_once(gaps_us, watched_ns, is_noisy):
    gaps = Histogram()
    for gap_us in gaps_us:
        gaps.record(gap_us * 10**6)
    findings = list(check_noise(HostNoise(cpu=0, watched_ns=watched_ns, gaps=gaps)))
    assert bool(findings) is is_noisy
    if gaps_us == [2_000]:
        assert "at most 2,000 µs at once" in findings[0].what
