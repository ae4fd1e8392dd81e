"""Readers give back what writers wrote, and refuse what was cut."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.fabric import (
    ROUTINGS,
    Fabric,
    Link,
    Node,
    Port,
    check_fabric,
    link_rate,
    read_fabric,
    read_ibnetdiscover,
    read_lft,
    read_toml,
    route,
    with_addresses,
    write_ibnetdiscover,
    write_lft,
    write_toml,
)

DATA = Path(__file__).parent.parent / "data" / "fabric"
examples = settings(deadline=None, max_examples=60)

letters = st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters='"')
names = (
    st.text(letters, min_size=1, max_size=12)
    .map(str.strip)
    .filter(lambda name: name and name.isprintable())
)
rates = st.sampled_from(["4xFDR", "12xSDR", "2xHDR", "56 Gb/s", "1.5e9 b/s", "7 GB/s"])


@st.composite
def stars(draw: st.DrawFn) -> Fabric:
    """Switches in a chain, hosts on any of them; odd names, gaps between ports, mixed rates."""
    switches = draw(st.integers(1, 4))
    places = draw(st.lists(st.integers(0, switches - 1), min_size=1, max_size=5))
    count = len(places) + switches
    title, *labels = draw(st.lists(names, min_size=count + 1, max_size=count + 1, unique=True))
    free = [iter(draw(st.permutations(range(1, 12)))) for _ in range(count)]
    cables = [(h, len(places) + s) for h, s in enumerate(places)]
    cables += [(s, s + 1) for s in range(len(places), count - 1)]
    links = []
    for a, b in cables:
        rate = link_rate(draw(rates))
        ends = Port(a, next(free[a])), Port(b, next(free[b]))
        links.append(Link(*ends, rate.data_bps, draw(st.integers(0, 10**12)), str(rate)))
    nodes = tuple(
        Node(label, "host" if i < len(places) else "switch", 11) for i, label in enumerate(labels)
    )
    fabric = Fabric(title, nodes, tuple(links), draw(st.integers(1, 15)))
    return check_fabric(with_addresses(fabric) if draw(st.booleans()) else fabric)


@examples
@given(stars())
def test_a_written_topology_dump_is_read_back_the_same(fabric):
    assert read_ibnetdiscover(write_ibnetdiscover(fabric)) == fabric


@examples
@given(stars(), st.sampled_from([None, *ROUTINGS]))
def test_a_written_toml_file_is_read_back_the_same(fabric, routing):
    routed = route(fabric, routing) if routing else fabric
    assert read_toml(write_toml(routed)) == routed


@examples
@given(stars())
def test_written_tables_are_read_back_the_same(fabric):
    routed = route(with_addresses(fabric), "destination_modulo")
    assert read_lft(write_lft(routed), replace(routed, routes=None)) == routed.routes


DUMPS = ["leaf_spine.ibnet", "leaf_spine_grouped.ibnet", "two_rails.ibnet"]


@pytest.mark.parametrize("name", DUMPS)
def test_a_topology_dump_cut_at_any_byte_is_refused_or_whole(name):
    text = (DATA / name).read_text()
    whole = read_ibnetdiscover(text)
    for end in range(len(text)):
        with suppress(InputError):
            assert read_ibnetdiscover(text[:end]) == whole


@pytest.mark.parametrize("name", ["leaf_spine", "two_rails"])
def test_tables_cut_at_any_byte_are_refused_or_whole(name):
    text = (DATA / f"{name}.lft").read_text()
    fabric = read_fabric(DATA / f"{name}.ibnet")
    whole = read_lft(text, fabric)
    for end in range(len(text)):
        with suppress(InputError):
            assert read_lft(text[:end], fabric) == whole


@examples
@given(stars(), st.data())
def test_a_toml_file_cut_at_any_byte_is_refused_or_a_sound_fabric(fabric, data):
    text = write_toml(route(fabric, "ecmp"))
    end = data.draw(st.integers(0, len(text)))
    with suppress(InputError):
        check_fabric(read_toml(text[:end]))


@examples
@given(st.sampled_from(DUMPS), st.data())
def test_a_dump_with_a_changed_byte_is_refused_or_a_sound_fabric(name, data):
    text = (DATA / name).read_text()
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.characters(codec="utf-8")) + text[at + 1 :]
    with suppress(InputError):
        check_fabric(read_ibnetdiscover(changed))


@examples
@given(st.text())
def test_any_text_is_refused_or_read(text):
    for read in (read_toml, read_ibnetdiscover):
        with suppress(InputError):
            check_fabric(read(text))
    with suppress(InputError):
        read_lft(text, read_fabric(DATA / "leaf_spine.ibnet"))
