"""Requests, many under way: each gets its own answer or says why not, whatever the wire does."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.switches.infiniband import open_subnet, open_switches
from weft.switches.infiniband.mad import PORT_INFO, Address, Smp
from weft.switches.infiniband.mad_transport import Arrival, Refusal, WindowedSmps, read_m_key
from weft.toml_table import Table

Fate = Callable[[bytes], list[Arrival]]


class Nodes:
    """Answers every request with its own attribute modifier, after what fate does to it.

    Time passes here only: a wait for nothing takes its whole time, an arrival a microsecond.
    """

    def __init__(self, fate: Fate, seed: int = 0) -> None:
        self._fate = fate
        self._random = random.Random(seed)
        self._under_way: list[Arrival] = []
        self.most_under_way = 0
        self.sent: list[tuple[Address, bytes]] = []
        self.now_s = 1.0

    def send(self, mad: bytes, to: Address, timeout_s: float) -> None:
        assert timeout_s > 0
        self.sent.append((to, mad))
        self._under_way += self._fate(mad)
        self.most_under_way = max(self.most_under_way, len(self._under_way))

    def receive(self, timeout_s: float) -> Arrival | None:
        assert timeout_s > 0
        if not self._under_way:
            self.now_s += timeout_s
            return None
        self.now_s += 1e-6
        return self._under_way.pop(self._random.randrange(len(self._under_way)))

    def close(self) -> None: ...


def smps_of(nodes: Nodes, **options: Any) -> WindowedSmps:
    return WindowedSmps(nodes, clock=lambda: nodes.now_s, **options)


def answered(mad: bytes, status: int = 0) -> Arrival:
    (modifier,) = struct.unpack_from(">I", mad, 20)
    answer = bytearray(mad)
    answer[3] = 0x81
    struct.pack_into(">H", answer, 4, status)
    struct.pack_into(">I", answer, 64, modifier)
    return Arrival(bytes(answer), is_undelivered=False)


def requests(count: int) -> list[Smp]:
    return [Smp(1 + n % 5, PORT_INFO, n) for n in range(count)]


def own_answer(n: int) -> bytes:
    return struct.pack(">I", n).ljust(64, b"\0")


@given(st.integers(0, 60), st.integers(1, 16), st.integers(0, 10**6))
def test_each_request_gets_its_own_answer_in_whatever_order_they_come(
    count: int, window: int, seed: int
) -> None:
    nodes = Nodes(lambda mad: [answered(mad)], seed)
    assert smps_of(nodes, window=window).ask(requests(count)) == [
        own_answer(n) for n in range(count)
    ]
    assert nodes.most_under_way <= window


@given(st.integers(1, 40), st.integers(0, 10**6))
@settings(deadline=None)
def test_lost_late_and_doubled_answers_change_no_other(count: int, seed: int) -> None:
    chance = random.Random(seed)

    def fate(mad: bytes) -> list[Arrival]:
        lost = Arrival(mad, is_undelivered=True)
        return chance.choice([[answered(mad)], [answered(mad)] * 2, [lost], [lost, answered(mad)]])

    nodes = Nodes(fate, seed)
    result = smps_of(nodes, tries=100, timeout_s=0.001).ask(requests(count))
    assert result == [own_answer(n) for n in range(count)]


def test_a_request_without_an_answer_is_asked_again_until_its_tries_are_used() -> None:
    nodes = Nodes(lambda _: [])
    (result,) = smps_of(nodes, tries=3, timeout_s=0.001).ask([Smp(9, PORT_INFO, 4)])
    assert isinstance(result, Refusal)
    assert "LID 9 does not answer (3 requests, 0.001 s each)" in result.problem
    assert len(nodes.sent) == 3
    assert len({mad[8:16] for _, mad in nodes.sent}) == 3, "each try is a transaction of its own"


def test_an_address_that_is_silent_is_given_up_for_the_rest_of_the_batch() -> None:
    def fate(mad: bytes) -> list[Arrival]:
        (modifier,) = struct.unpack_from(">I", mad, 20)
        return [] if modifier % 5 == 0 else [answered(mad)]  # LID 1

    nodes = Nodes(fate)
    result = smps_of(nodes, window=4, tries=2, timeout_s=0.05).ask(requests(100))
    assert [isinstance(answer, Refusal) for answer in result] == [n % 5 == 0 for n in range(100)]
    assert sum(to == 1 for to, _ in nodes.sent) <= 4 * 2


def to_one_address(count: int) -> list[Smp]:
    return [Smp(1, PORT_INFO, n) for n in range(count)]


def test_one_answer_that_is_lost_for_good_costs_no_other_of_its_address() -> None:
    def fate(mad: bytes) -> list[Arrival]:
        (modifier,) = struct.unpack_from(">I", mad, 20)
        return [] if modifier == 7 else [answered(mad)]

    result = smps_of(Nodes(fate), window=4, tries=2, timeout_s=0.05).ask(to_one_address(50))
    assert [isinstance(answer, Refusal) for answer in result] == [n == 7 for n in range(50)]


def test_an_address_that_falls_silent_is_given_up_although_it_has_answered() -> None:
    nodes = Nodes(lambda mad: [answered(mad)] if len(nodes.sent) <= 20 else [])
    result = smps_of(nodes, window=4, tries=2, timeout_s=0.05).ask(to_one_address(500))
    assert [isinstance(answer, Refusal) for answer in result] == [n >= 20 for n in range(500)]
    assert len(nodes.sent) <= 20 + 2 * 4 * 2


def test_a_batch_can_have_more_patience() -> None:
    nodes = Nodes(lambda mad: [answered(mad)] if len(nodes.sent) == 3 else [])
    smps = smps_of(nodes, tries=2, timeout_s=0.001)
    assert smps.ask([Smp(3, PORT_INFO, 7)], tries=3) == [own_answer(7)]


def test_a_busy_port_is_asked_again_after_a_pause() -> None:
    statuses = [0x1, 0x1, 0x0]
    nodes = Nodes(lambda mad: [answered(mad, statuses.pop(0))])
    started_s = nodes.now_s
    assert smps_of(nodes, timeout_s=0.01).ask([Smp(3, PORT_INFO, 7)]) == [own_answer(7)]
    assert nodes.now_s - started_s == pytest.approx(2 * 0.01, abs=1e-4)


def test_a_port_that_stays_busy_is_given_up_and_that_is_said() -> None:
    nodes = Nodes(lambda mad: [answered(mad, 0x1)])
    result = smps_of(nodes, window=2, tries=3, timeout_s=0.001).ask(to_one_address(100))
    busy = Refusal("LID 1 says that it is busy (3 requests, 0.001 s each)", is_silence=True)
    assert result == [busy] * 100
    assert len(nodes.sent) <= 2 * 3


def test_an_adapter_that_fails_refuses_what_is_left_and_no_more() -> None:
    def fate(mad: bytes) -> list[Arrival]:
        if len(nodes.sent) == 30:
            raise InputError("infiniband", "a request cannot be sent", "see `ibstat`")
        return [answered(mad)]

    nodes = Nodes(fate)
    smps = smps_of(nodes, window=4)
    result = smps.ask(to_one_address(50))
    refused = [answer for answer in result if isinstance(answer, Refusal)]
    assert set(refused) == {
        Refusal("infiniband: a request cannot be sent; see `ibstat`", is_silence=True)
    }
    assert 50 - 30 < len(refused) <= 50 - 30 + 4
    assert smps.ask(to_one_address(9)) == [own_answer(n) for n in range(9)]


def test_a_status_is_the_answer_and_is_not_asked_again() -> None:
    nodes = Nodes(lambda mad: [answered(mad, 0x1C)])
    result = smps_of(nodes).ask([Smp((1, 2), PORT_INFO, 7)])
    assert result == [Refusal("the path 0,1,2 a value is invalid (status 0x1c)", status=0x1C)]
    assert len(nodes.sent) == 1


def test_the_key_is_in_every_request() -> None:
    nodes = Nodes(lambda mad: [answered(mad)])
    smps_of(nodes, m_key=0x1122334455667788).ask(requests(3))
    assert {mad[24:32].hex() for _, mad in nodes.sent} == {"1122334455667788"}


MISSING = "libibumad-that-is-not.so.3"


def test_without_the_library_the_driver_says_what_is_missing() -> None:
    with pytest.raises(InputError, match=r"not available, because there is no libibumad-that"):
        open_subnet(library=MISSING)


def test_a_controllers_file_names_the_drivers_options() -> None:
    asked = Table({"adapter": "mlx5_0", "levels": 16, "timeout": "50 ms", "bogus": 1}, "file")
    with pytest.raises(InputError, match="not available"):
        open_switches(asked, MISSING)
    with pytest.raises(InputError, match="bogus: is not a known key"):
        asked.done()


@pytest.mark.parametrize(
    ("key", "value"), [("levels", 17), ("window", 0), ("timeout", "1 us"), ("port", -1)]
)
def test_an_option_outside_its_range_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(InputError, match=f"file: {key}"):
        open_switches(Table({key: value}, "file"))


@pytest.mark.parametrize(
    ("key", "value"), [("levels", 1), ("levels", 16), ("window", 1), ("tries", 1), ("port", 254)]
)
def test_an_option_at_the_end_of_its_range_is_taken(key: str, value: object) -> None:
    with pytest.raises(InputError, match="not available, because there is no"):
        open_switches(Table({key: value}, "file"), MISSING)


# ---- The key ------------------------------------------------------------------------------------


def key_file(directory: Path, text: str, mode: int = 0o600) -> Path:
    file = directory / "m_key"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_key_is_read_from_a_file_of_its_owner_alone(tmp_path: Path) -> None:
    assert read_m_key(key_file(tmp_path, "0xA1b2\n")) == 0xA1B2


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(InputError, match=f"mode {mode:04o}: others can read it"):
        read_m_key(key_file(tmp_path, "0x1", mode))


@pytest.mark.parametrize("text", ["", "12", "0x", "0x10000000000000000", "0x1 0x2", "secret"])
def test_a_file_without_a_key_is_refused_and_not_quoted(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="does not hold a key") as caught:
        read_m_key(key_file(tmp_path, text))
    assert text == "" or text not in caught.value.problem


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_m_key(tmp_path / "none")
