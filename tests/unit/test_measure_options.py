"""What cannot be measured is refused with one line, before anything is opened."""

import pytest

from weft.cli import main


def error_line(capsys, *argv: str) -> str:
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("weft: ")
    assert ";" in line, "an error says what to do"
    return line


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("rma --over tcp", "no one-sided operations"),
        ("rma --over udp", "no one-sided operations"),
        ("rperf --over tcp", "completes when the kernel has it"),
        ("rperf --over udp", "not acknowledged"),
        ("rperf --over delay --endpoint ud", "not acknowledged"),
        ("rperf --over delay --wait block", "a sleep would be measured"),
        ("transfer --over udp", "must not lose messages"),
        ("transfer --over verbs --memory cuda", "read from the host's memory"),
        ("transfer --over tcp --count 5", "a transfer ends at its total"),
        ("transfer --over tcp --one-buffer --validate", "overwrite each other"),
        ("rma --over delay --op fetch-add --size 64", "fetch-add is of 8 B"),
        ("rma --over delay --depth 4 --validate", "--depth 1"),
        ("saturation --over tcp --count 5", "a step ends by time"),
    ],
)
def test_a_test_that_the_transport_or_itself_cannot_do_is_refused(capsys, command, said):
    assert said in error_line(capsys, *command.split())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("latency --over pigeon", "'pigeon' is not a transport"),
        ("bandwidth --size 1KiB,64KiB", "for several values write --sweep size=1KiB,64KiB"),
        ("latency --over tcp:eth0", "tcp has no devices"),
        ("latency --over ofi", "ofi needs a provider"),
        ("latency --over ofi:", "names no device"),
        ("latency --size 0", "--size: '0' is too small"),
        ("latency --size 3G", "too large"),
        ("latency --size many", "is not a size"),
        ("latency --count 0", "--count: '0' is too small"),
        ("latency --count 1.5", "--count: '1.5' is not a whole number"),
        ("latency --count 10 --duration 1s", "only one can end a test"),
        ("latency --duration 5", "--duration: '5' is not a time"),
        ("latency --duration 0s", "0 measures nothing"),
        ("latency --over udp --size 4", "sequence number of a datagram"),
        ("latency --over udp --size 65508", "do not fit a UDP datagram"),
        ("latency --over delay --endpoint ud --size 4", "sequence number of a datagram"),
        ("latency --over tcp --sl 3", "--sl: tcp has no such setting"),
        ("latency --over tcp --endpoint rc", "--endpoint: tcp has no such setting"),
        ("latency --over delay --endpoint rdm", "'rdm' is not of delay"),
        ("latency --over tcp --delay wire=5us", "--delay wire: tcp has no such setting"),
        ("latency --over delay --delay colour=5us", "no such setting"),
        ("latency --over delay --delay wire", "is not KEY=VALUE"),
        ("latency --over delay --delay loss=2", "is not a share"),
        ("latency --dscp 64", "--dscp: '64' is too large"),
        ("latency --dscp 10 --traffic-class 40", "both set the same byte"),
        ("latency --over verbs --pkey 0x10000", "'0x10000' is not a partition key"),
        ("latency --over verbs --pkey first", "'first' is not a partition key"),
        ("latency --repeat 0", "--repeat: '0' is too small"),
        ("latency --sweep colour=1", "no such setting"),
        ("latency --sweep size=1,2 --size 4", "is also given by --sweep"),
        ("latency node7 --over delay", "the delay transport has no peer"),
        ("bandwidth --depth 4 --post-list 8", "exceeds the 4 messages outstanding"),
        ("bandwidth --depth 4 --signal-every 8", "exceeds the 4 messages outstanding"),
        ("bandwidth --depth 65536 --size 1M --qps 16", "GiB of messages outstanding"),
        ("rate --threads 0", "--threads: '0' is too small"),
        ("paced --rate 0", "--rate: '0' is out of range"),
        ("paced --arrivals weekly", "'weekly' is not known"),
        ("latency -o /nowhere/x.jsonl", "does not exist"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(capsys, command, said):
    assert said in error_line(capsys, *command.split())


def test_every_point_of_a_sweep_is_checked_before_any_runs(capsys):
    line = error_line(capsys, "latency", "--over", "udp", "--sweep", "size=64,65508")
    assert "65508" in line
