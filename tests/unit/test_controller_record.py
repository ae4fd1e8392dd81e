"""Two controllers on one InfiniBand subnet: the second is refused, by a record of the subnet's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from iba_layouts import NODE, PORT, laid_out

from weft.switches import Claim, Taken
from weft.switches.infiniband import mad
from weft.switches.infiniband.controller_record import LEASE_S, RENEW_S, ControllerRecord
from weft.switches.infiniband.mad import RecordRequest, Request, Smp
from weft.switches.infiniband.mad_transport import Refusal

MANAGER = 7
GET, SET, DELETE = 0x01, 0x02, 0x15


class Administration:
    """Service records as the architecture describes them, by id and GID; `is_silent`: no answer."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.records: dict[tuple[int, bytes], tuple[float, bytes]] = {}
        self.is_silent = False
        self.manager = MANAGER
        self.before_set: Callable[[], None] = lambda: None

    def answer(self, request: RecordRequest) -> bytes | Refusal:
        if self.is_silent:
            return Refusal("LID 7 does not answer", is_silence=True)
        assert request.to == MANAGER
        self.records = {k: r for k, r in self.records.items() if r[0] > self.now_s}
        record = mad.unpack_service(request.data)
        key = record.id, record.gid
        if request.method == SET:
            self.before_set()
            self.records[key] = self.now_s + record.lease_s, request.data
            return request.data
        if request.method == DELETE:
            return self.records.pop(key)[1] if key in self.records else _refuse(mad.NO_RECORDS)
        assert request.method == GET
        if len(self.records) != 1:
            return _refuse(mad.TOO_MANY_RECORDS if self.records else mad.NO_RECORDS)
        ((_, data),) = self.records.values()
        return data


def _refuse(status: int) -> Refusal:
    return Refusal(f"LID {MANAGER} refuses", status=status)


class Host:
    """A port on the subnet: what its controller asks."""

    def __init__(self, administration: Administration, guid: int) -> None:
        self.administration, self.guid = administration, guid

    def ask(self, requests: Sequence[Request], tries: int | None = None) -> list[bytes | Refusal]:
        assert tries is None or tries > 0
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> bytes | Refusal:
        if isinstance(request, RecordRequest):
            return self.administration.answer(request)
        assert isinstance(request, Smp)
        if request.attribute == mad.NODE_INFO:
            return laid_out(NODE, {"PortGUID": self.guid})
        return laid_out(PORT, {"LID": 3, "MasterSMLID": self.administration.manager})

    def close(self) -> None: ...


@pytest.fixture
def subnet() -> Administration:
    return Administration()


def record(subnet: Administration, guid: int) -> ControllerRecord:
    return ControllerRecord(Host(subnet, guid), lambda: subnet.now_s)


def claim(name: str, epoch: int | None = None) -> Claim:
    owner = f"/etc/{name}.toml on {name}, pid 12, since 2026-11-17 02:11:05"
    return Claim(owner=owner, epoch=epoch, place=name)


def test_the_second_controller_is_refused_and_told_who_has_the_subnet(
    subnet: Administration,
) -> None:
    record(subnet, 0xA1).claim(claim("lab1"))
    before = dict(subnet.records)
    expected = (
        r"this subnet belongs to the controller /etc/lab1.toml on lab1, pid 12, "
        r"at port 0x00000000000000a1; end that controller first"
    )
    with pytest.raises(Taken, match=expected):
        record(subnet, 0xB2).claim(claim("lab2"))
    with pytest.raises(Taken, match=expected):  # also on the same host, at the same port
        record(subnet, 0xA1).claim(claim("lab2"))
    assert subnet.records == before


def test_a_controller_that_ended_or_was_killed_does_not_stand_in_the_way(
    subnet: Administration,
) -> None:
    first = record(subnet, 0xA1)
    first.claim(claim("lab1"))
    record(subnet, 0xA1).claim(claim("lab1"))  # killed, and started again where it was
    with pytest.raises(Taken):
        record(subnet, 0xB2).claim(claim("lab2"))
    subnet.now_s += LEASE_S + 1
    second = record(subnet, 0xB2)
    second.claim(claim("lab2"))
    second.withdraw()
    assert not subnet.records
    record(subnet, 0xA1).claim(claim("lab1"))


def test_a_controller_keeps_its_record_beyond_the_lease_and_a_restart_of_the_manager(
    subnet: Administration,
) -> None:
    first = record(subnet, 0xA1)
    first.claim(claim("lab1"))
    for _ in range(2 * round(LEASE_S / RENEW_S)):
        subnet.now_s += RENEW_S
        first.renew()
    assert subnet.records
    subnet.records.clear()  # it has restarted
    first.renew()
    assert not subnet.records  # not due yet
    subnet.now_s += RENEW_S
    first.renew()
    with pytest.raises(Taken):
        record(subnet, 0xB2).claim(claim("lab2"))


def test_of_two_that_start_at_the_same_moment_at_most_one_goes_on(subnet: Administration) -> None:
    first, second = record(subnet, 0xA1), record(subnet, 0xB2)

    def start_second() -> None:
        subnet.before_set = lambda: None
        second.claim(claim("lab2"))

    subnet.before_set = start_second
    with pytest.raises(Taken, match="lab2"):
        first.claim(claim("lab1"))
    subnet.now_s += RENEW_S
    second.renew()
    assert [mad.unpack_service(data).gid[8:].hex() for _, data in subnet.records.values()] == [
        "00000000000000b2"
    ]


def test_a_controller_that_finds_another_later_stops(subnet: Administration) -> None:
    first, second = record(subnet, 0xA1), record(subnet, 0xB2)
    first.claim(claim("lab1"))
    records = dict(subnet.records)
    subnet.records.clear()  # the manager has restarted, and the second came before the renewal
    second.claim(claim("lab2"))
    subnet.records |= records
    subnet.now_s += RENEW_S
    with pytest.raises(Taken, match="lab2"):
        first.renew()
    second.renew()
    assert len(subnet.records) == 1


def test_what_cannot_be_noticed_is_said(subnet: Administration) -> None:
    alone = record(subnet, 0xA1)
    subnet.is_silent = True
    alone.claim(claim("lab1"))
    assert alone.problem == "another controller would not be noticed: LID 7 does not answer"
    subnet.is_silent, subnet.manager = False, 0
    subnet.now_s += RENEW_S
    alone.renew()
    assert alone.problem.endswith("no subnet manager is known")
    subnet.manager = MANAGER
    subnet.now_s += RENEW_S
    alone.renew()
    assert not alone.problem
    assert subnet.records
    alone.withdraw()
    alone.renew()
    assert not subnet.records


def test_an_owner_by_etcd_looks_and_leaves_no_record(subnet: Administration) -> None:
    record(subnet, 0xA1).claim(claim("lab1", epoch=5))
    assert not subnet.records
    record(subnet, 0xB2).claim(claim("lab2"))
    with pytest.raises(Taken, match="lab2"):
        record(subnet, 0xA1).claim(claim("lab1", epoch=6))


def test_a_record_is_packed_as_the_architecture_says() -> None:
    gid = bytes(range(16))
    sent = mad.ServiceRecord(0x0102030405060708, gid, 60, b"weft-control", b"who")
    packet = mad.pack_request(sent.set_at(7), 0x11)
    assert packet[:4] == bytes([1, mad.ADMINISTRATION, 2, SET])
    assert int.from_bytes(packet[8:16], "big") == 0x11
    assert packet[16:18] == b"\x00\x31"
    mask = int.from_bytes(packet[48:56], "big")
    assert mask == 0b1010011 | ((1 << 28) - 1) << 7  # id, GID, lease, name; 16 + 8 + 4 of data
    data = packet[56:]
    assert data[:24] == sent.id.to_bytes(8, "big") + gid
    assert data[28:32] == (60).to_bytes(4, "big")
    assert data[48:60] == b"weft-control"
    assert data[112:115] == b"who"
    answer = bytes([1, mad.ADMINISTRATION, 2, 0x81]) + packet[4:]
    back = mad.unpack_service(mad.unpack_answer(answer).data)
    assert (back.id, back.gid, back.lease_s) == (sent.id, gid, 60)
