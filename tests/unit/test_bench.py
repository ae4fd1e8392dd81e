"""The benchmarks' own bookkeeping: what is read from the peers, who takes turns, what is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from bench import defaults, measure, ours
from bench.figure import Figure, save
from bench.ours import Round
from bench.peers import fi_pingpong, iperf3, qperf, sockperf
from bench.wide import wide

# Recorded from sockperf 3.7, qperf 0.4.11 and fi_pingpong 1.17.
SOCKPERF_PING_PONG = """\
sockperf: [Total Run] RunTime=1.001 sec; Warm up time=400 msec; SentMessages=67062; ReceivedMessages=67061
sockperf: Summary: Latency is 7.751 usec
sockperf: ---> percentile 75.000 =    7.696
sockperf: ---> percentile 50.000 =    7.320
sockperf: ---> percentile 25.000 =    6.619
"""  # noqa: E501
SOCKPERF_THROUGHPUT = """\
sockperf: Total of 905980 messages sent in 1.000 sec
sockperf: Summary: Message Rate is 905545 [msg/sec]
sockperf: Summary: BandWidth is 55.270 MBps (442.161 Mbps)
"""
QPERF_LATENCY = """\
tcp_lat:
    latency          =      108413 ns
    msg_rate         =     9178.11 /sec
"""
QPERF_TCP = """\
tcp_bw:
    bw              =  1.89e+09 bytes/sec
    msg_rate        =     28900 /sec
"""
QPERF_UDP = """\
udp_bw:
    send_bw         =       6616832 bytes/sec
    recv_bw         =       2862701 bytes/sec
"""
FI_PINGPONG = """\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64      20k     =20k     2.4m        0.06s     40.72       1.57       0.64
"""


def test_figures_are_read_from_what_the_peers_print() -> None:
    assert sockperf.median_in(SOCKPERF_PING_PONG) == 7.320
    assert sockperf.rate_in(SOCKPERF_THROUGHPUT) == 905545
    assert qperf.latency_in(QPERF_LATENCY) == 108413
    assert qperf.bandwidth_in(QPERF_TCP) == 1.89e9
    assert fi_pingpong.mean_in(FI_PINGPONG) == 1.57


def test_of_udp_what_arrived_counts_not_what_was_sent() -> None:
    assert qperf.bandwidth_in(QPERF_UDP) == 2862701


IPERF3 = {
    "end": {
        "sum": {"bits_per_second": 8e9, "lost_percent": 25},
        "sum_received": {"bits_per_second": 4e9},
    }
}


def test_of_iperf3_what_arrived_counts() -> None:
    text = json.dumps(IPERF3)
    assert iperf3.bandwidth_in(text) == 0.5e9
    assert iperf3.bandwidth_in(text, "udp") == 0.75e9


def test_the_grid_has_every_size_that_a_peer_can_and_ours_at_its_defaults() -> None:
    sizes = {
        part: {(case.what.size_bytes, case.what.block) for case in defaults._cases(part)}
        for part in defaults.PARTS
    }
    assert sizes["tcp latency"] == {
        *((size, False) for size in (14, 200, 1500, 9000)),
        *((size, True) for size in (1, 200, 1500, 9000, 100_000)),
    }
    assert sizes["udp throughput"] == {
        (size, block) for size in (8, 200, 1500, 9000) for block in (False, True)
    }
    assert {size for size, _ in sizes["ofi latency"]} == set(defaults.SIZES)
    every = [case for part in defaults.PARTS for case in defaults._cases(part)]
    assert all(case.peers and case.rounds >= 9 and case.what.defaults for case in every)


@pytest.mark.parametrize(
    ("ratio", "goal", "said"),
    [
        ("1.06", "≤ 1.05", "≤ 1.05 *"),
        ("1.05", "≤ 1.05", "≤ 1.05"),
        ("0.94", "≥ 0.95", "≥ 0.95 *"),
        ("", "", ""),
    ],
)
def test_a_ratio_past_its_goal_is_marked(ratio: str, goal: str, said: str) -> None:
    assert defaults._mark(["what", ratio, "range", "9", goal]) == [
        "what",
        ratio,
        "range",
        "9",
        said,
    ]


def test_a_round_at_defaults_is_what_the_commands_measure() -> None:
    timed = ours.run(Round(transport="tcp", seconds=0.02, block=True, defaults=True))
    assert timed["mean_us"] > 0
    streamed = ours.run(Round(transport="tcp", test="stream", seconds=0.02, defaults=True))
    assert streamed["bytes_per_s"] > 0


def test_output_without_the_figure_is_an_error() -> None:
    with pytest.raises(SystemExit, match="percentile"):
        sockperf.median_in("sockperf: ERROR: nothing received")


def figure(name: str, half: str) -> Figure:
    return Figure(name=name, unit="us", ours=1, peer=None, theirs=None, goal=None, half=half)


def test_a_half_that_was_run_replaces_its_own_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "latest.jsonl"
    save([figure("S1", "simulate")], path)
    save([figure("tcp", "measure")], path)
    save([figure("udp", "measure")], path)
    assert [json.loads(line)["name"] for line in path.read_text().splitlines()] == ["S1", "udp"]


def test_what_whole_fabrics_gain_is_told_for_both_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    figures = wide(quick=True)
    told = capsys.readouterr().out
    assert "8 × 2" in told
    assert "16 × 4" in told
    assert {figure.half for figure in figures} == {"wide"}
    # The bound that no split goes below is that of the promised total.
    assert all(figure.ours >= -1e-4 for figure in figures if "least share" in figure.name)


def test_everybody_has_one_turn_per_round_and_each_begins_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns: list[str] = []

    def one_of_ours(_: Round) -> Mapping[str, float]:
        turns.append("ours")
        return {"p50_us": 2.0, "mean_us": 3.0}

    def peer(name: str, against: str) -> measure.Peer:
        def run() -> float:
            turns.append(name)
            return 4.0

        return measure.Peer(tool=qperf, note=name, against=against, run=run)

    monkeypatch.setattr(ours, "run", one_of_ours)
    case = replace(measure.CASES[0], peers=(peer("a", "p50_us"), peer("b", "mean_us")))
    results = measure._rounds(case, 3)
    rounds = [turns[start : start + 3] for start in range(0, 9, 3)]
    assert [sorted(one) for one in rounds] == [["a", "b", "ours"]] * 3
    assert {one[0] for one in rounds} == {"a", "b", "ours"}
    # A median is compared with our median, a mean with our mean.
    assert [one.ratio for one in measure._figures(case, case.peers, results)] == [0.5, 0.75]


def test_one_round_of_ours_gives_both_statistics() -> None:
    answer = ours.run(Round(transport="tcp", messages=200, warmup=10, block=True))
    assert answer["p50_us"] > 0
    assert answer["mean_us"] > 0


def test_one_stream_of_ours_is_counted_where_it_arrives() -> None:
    answer = ours.run(
        Round(
            transport="tcp",
            test="stream",
            messages=2000,
            warmup=10,
            window=16,
            block=True,
            nagle=True,
        )
    )
    assert answer["messages_per_s"] > 0
    assert answer["lost"] == 0


def test_memory_is_that_of_the_benchmark_not_of_who_started_it() -> None:
    ballast = b"\1" * (400 << 20)  # in the parent
    command = [sys.executable, "-m", "bench.scenarios", "S2-k8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert 10 < json.loads(done.stdout)["peak_rss_mib"] < 300
    del ballast
