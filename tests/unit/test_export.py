"""`weft export`: counters of ports as metrics, and what it cannot use as one line."""

from __future__ import annotations

import re
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest
from certificates import certificates
from iba_layouts import Layout, laid_out
from small_subnet import ADAPTER, SWITCHING, Device, SmallSubnet, cable

from weft.cli import main
from weft.cli.serve import has_ipv6_loopback
from weft.errors import InputError
from weft.switches.infiniband.mad import (
    PORT_COUNTERS,
    PORT_COUNTERS_EXTENDED,
    CountersGet,
    Request,
    Smp,
    pack_request,
)
from weft.switches.infiniband.mad_transport import Refusal
from weft.switches.infiniband.port_counters import CounterReader
from weft.wire.prometheus import MetricsServer, format_family, format_labels

# IBA volume 1, 16.1.3.5 and 16.1.4.11.
COUNTERS: Layout = {
    "PortSelect": (8, 8),
    "SymbolErrorCounter": (32, 16),
    "LinkDownedCounter": (56, 8),
    "PortRcvErrors": (64, 16),
    "PortXmitDiscards": (112, 16),
    "LocalLinkIntegrityErrors": (152, 4),
    "ExcessiveBufferOverrunErrors": (156, 4),
    "PortXmitWait": (320, 32),
}
EXTENDED: Layout = {
    "PortSelect": (8, 8),
    "PortXmitData": (64, 64),
    "PortRcvData": (128, 64),
    "PortXmitPkts": (192, 64),
    "PortRcvPkts": (256, 64),
}


class CountedSubnet:
    """A subnet of a switch and two hosts; every counter is other than the next."""

    def __init__(self) -> None:
        a, b = (Device(n, ADAPTER, 1, f"h{n}", lid=n) for n in (1, 2))
        switch = Device(16, SWITCHING, 4, "leaf", lid=3)
        cable(a, 1, switch, 1)
        cable(b, 1, switch, 2)
        self.subnet = SmallSubnet(a, [a, b, switch])
        self.counted = 0
        self.refused: set[int] = set()

    def ask(self, requests: Sequence[Request], tries: int | None = None) -> list[bytes | Refusal]:
        smps = [request for request in requests if isinstance(request, Smp)]
        if smps:
            return self.subnet.ask(smps, tries)
        self.counted += len(requests)
        return [self._answer(request) for request in requests if isinstance(request, CountersGet)]

    def _answer(self, request: CountersGet) -> bytes | Refusal:
        assert request.to == 3
        if request.port in self.refused:
            return Refusal("LID 3 does not answer")
        layout = EXTENDED if request.attribute == PORT_COUNTERS_EXTENDED else COUNTERS
        values = {name: n + 10 * request.port for n, name in enumerate(layout) if n}
        if layout is COUNTERS:
            values |= {"LocalLinkIntegrityErrors": 7, "ExcessiveBufferOverrunErrors": 9}
        return laid_out(layout, {**values, "PortSelect": request.port})

    def close(self) -> None: ...


@pytest.fixture
def subnet() -> CountedSubnet:
    return CountedSubnet()


def test_a_request_for_counters_is_laid_out_as_the_architecture_says() -> None:
    mad = pack_request(CountersGet(5, PORT_COUNTERS_EXTENDED, 17), 0x1234)
    assert (len(mad), mad[:4].hex(), mad[8:16].hex()) == (256, "01040101", "0000000000001234")
    assert (mad[16:18].hex(), mad[18:64], mad[64:68].hex()) == ("001d", bytes(46), "0011ffff")
    assert mad[68:] == bytes(188)
    assert pack_request(CountersGet(5, PORT_COUNTERS, 1), 1)[16:18].hex() == "0012"


def test_every_counter_is_in_its_place_and_data_is_in_bytes(subnet: CountedSubnet) -> None:
    reader = CounterReader(subnet)
    assert reader.discover() == 2
    lines = reader.format().splitlines()
    expected = {
        "sent_bytes": 4 * 11,
        "received_bytes": 4 * 12,
        "sent_packets": 13,
        "received_packets": 14,
        "symbol_errors": 11,
        "link_downs": 12,
        "receive_errors": 13,
        "discarded_packets": 14,
        "buffer_overruns": 9,
        "wait_ticks": 17,
    }
    for name, value in expected.items():
        assert f'weft_port_{name}_total{{node="leaf",port="1"}} {value}' in lines
        assert f"# TYPE weft_port_{name}_total counter" in lines
    assert 'weft_port_info{node="leaf",port="2",peer="h2",peer_port="1"} 1' in lines
    assert 'weft_port_capacity_bytes_per_second{node="leaf",port="1"} 12500000000.0' in lines


def test_a_scrape_discovers_nothing_and_a_silent_port_is_a_gap(subnet: CountedSubnet) -> None:
    reader = CounterReader(subnet)
    with pytest.raises(InputError, match="was not discovered yet"):
        reader.format()
    reader.discover()
    asked = len(subnet.subnet.asked)
    subnet.refused = {2}
    text = reader.format()
    assert (len(subnet.subnet.asked), subnet.counted) == (asked, 4)
    assert 'weft_port_sent_bytes_total{node="leaf",port="1"}' in text
    assert 'weft_port_sent_bytes_total{node="leaf",port="2"}' not in text
    assert "weft_export_silent_ports 1\n" in text


def test_every_metric_is_documented(subnet: CountedSubnet) -> None:
    text = Path(__file__).parents[2].joinpath("docs/operations.md").read_text()
    reader = CounterReader(subnet)
    reader.discover()
    names = set(re.findall(r"^# TYPE (\S+)", reader.format(), flags=re.M))
    assert names == set(re.findall(r"weft_(?:port|export)_[a-z_]+", text))


def test_labels_and_families_are_written_as_prometheus_reads_them() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client")
    labels = {"node": 'a "b"\\c\nd', "port": "1"}
    text = format_family("weft_x_total", "counter", "About.", [(format_labels(labels), 7)])
    (family,) = parser.text_string_to_metric_families(text)
    ((_, read, value, *_),) = family.samples
    assert (family.type, family.documentation, read, value) == ("counter", "About.", labels, 7)
    assert format_family("weft_y", "gauge", "About.", [("", 0.5)]).endswith("\nweft_y 0.5\n")


def fail() -> str:
    raise InputError("weft export", "the subnet is gone", "look")


def test_the_server_answers_at_one_path_and_says_what_went_wrong() -> None:
    answers = iter(["weft_x 1\n"])
    server = MetricsServer("127.0.0.1", 0, lambda: next(answers, "") or fail())
    server.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=20) as reply:
            assert reply.read() == b"weft_x 1\n"
        for path, status in (("/metrics", 503), ("/", 404)):
            with pytest.raises(urllib.error.HTTPError) as raised:
                urllib.request.urlopen(f"{url}{path}", timeout=20)
            with raised.value as error:
                assert error.code == status
    finally:
        server.close()


@pytest.mark.skipif(not has_ipv6_loopback(), reason="no IPv6 loopback")
def test_an_address_with_colons_is_served_over_ipv6() -> None:
    server = MetricsServer("::1", 0, lambda: "weft_x 1\n")
    server.start()
    try:
        url = f"http://[::1]:{server.server_port}/metrics"
        with urllib.request.urlopen(url, timeout=20) as reply:
            assert reply.read() == b"weft_x 1\n"
    finally:
        server.close()


def test_beyond_loopback_scrapers_need_a_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl: not installed")
    certificates(tmp_path)
    files = {"clients": "ca.pem", "certificate": "controller.pem", "key": "controller.key"}
    options = [f"--{name}={tmp_path / file}" for name, file in files.items()]
    assert main(["export", "--listen", "0.0.0.0:0", "--adapter", "none_0", *options]) == 2
    assert "infiniband: not available" in capsys.readouterr().err  # the options can be used
    paths = {name: tmp_path / file for name, file in files.items()}
    server = MetricsServer("127.0.0.1", 0, lambda: "weft_x 1\n", paths)
    server.start()
    url = f"https://127.0.0.1:{server.server_port}/metrics"
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    try:
        with pytest.raises(OSError, match=r"\w"):
            urllib.request.urlopen(url, timeout=20, context=context)
        context.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
        with urllib.request.urlopen(url, timeout=20, context=context) as reply:
            assert reply.read() == b"weft_x 1\n"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "nowhere"], "--listen nowhere: is not HOST:PORT; such as 127.0.0.1:9341"),
        (["--listen", "h:99999"], "--listen h:99999: is not HOST:PORT"),
        (
            ["--listen", "0.0.0.0:9341"],
            "--listen 0.0.0.0:9341: '0.0.0.0' is not loopback, so TLS is needed; "
            "give --certificate, --key and --clients, or use 127.0.0.1",
        ),
        (["--listen", "[::]:9341"], "--listen [::]:9341: '::' is not loopback, so TLS is needed"),
        (["--key", "k"], "TLS: only together: --clients, --certificate, --key; give all three"),
        (["--key=k", "--clients=a", "--certificate=c"], "a: No such file or directory"),
        (["--rediscover", "x"], "--rediscover x: is out of range; give 1 to 86400"),
        (["--port", "-1"], "--port -1: is out of range; give 0 to 254"),
        (["--m-key-file", "/nowhere"], "M_Key file /nowhere: cannot be read"),
        (["--adapter", "none_0"], "infiniband: not available, because "),
    ],
)
def test_options_that_cannot_be_used_are_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["export", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"weft: {message}")
