"""Laws of the latency forms over random physical parameters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.model import fit
from weft.model.latency import (
    segmented_latency,
    single_packet_latency,
    stepped_latency,
    verbs_latency,
)

MTU, INLINE = 2048, 236
VERBS = verbs_latency(mtu_bytes=MTU, inline_limit_bytes=INLINE)
SIZES = 2.0 ** np.arange(2, 24)
RATES = np.array([8.0, 16.0, 32.0, 54.5])

hosts = st.fixed_dictionaries(
    {
        "base_us": st.floats(0.3, 5.0),
        "hop_bytes": st.floats(20.0, 200.0),
        "packet_bytes": st.floats(26.0, 80.0),
        "copy_ns_per_byte": st.floats(0.1, 3.0),
        "fetch_us": st.floats(0.2, 2.0),
        "pcie_gbps": st.floats(20.0, 50.0),
    }
)


def verbs_us(host: dict[str, float], size: float, rate_gbps: float) -> float:
    inputs = {"size_bytes": np.array([size]), "data_rate_gbps": np.array([rate_gbps])}
    return float(VERBS.evaluate(host, inputs)[0])


@given(hosts, st.integers(0, INLINE), st.floats(1.0, 400.0))
def test_an_inline_message_is_copied_and_serialised(
    host: dict[str, float], size: int, rate_gbps: float
) -> None:
    # T = base + (hop + h + s) 8/R + copy s
    on_wire = host["hop_bytes"] + host["packet_bytes"] + size
    expected = host["base_us"] + on_wire * 8e-3 / rate_gbps + host["copy_ns_per_byte"] * 1e-3 * size
    assert verbs_us(host, size, rate_gbps) == pytest.approx(expected)


@given(hosts, st.integers(1, 1000), st.floats(1.0, 400.0))
def test_each_further_packet_costs_the_slowest_stage(
    host: dict[str, float], packets: int, rate_gbps: float
) -> None:
    # T(n + 1) - T(n) = max((M + h) 8/R, M 8/P)
    more = verbs_us(host, (packets + 1) * MTU, rate_gbps) - verbs_us(host, packets * MTU, rate_gbps)
    on_link = (MTU + host["packet_bytes"]) * 8e-3 / rate_gbps
    on_bus = MTU * 8e-3 / host["pcie_gbps"]
    assert more == pytest.approx(max(on_link, on_bus), rel=1e-6)


@given(hosts, st.floats(1.0, 400.0), st.floats(1.0, 10.0))
def test_a_faster_link_never_makes_a_message_later(
    host: dict[str, float], rate_gbps: float, faster: float
) -> None:
    inputs = {"size_bytes": SIZES, "data_rate_gbps": np.full(SIZES.shape, rate_gbps)}
    slow = VERBS.evaluate(host, inputs)
    fast = VERBS.evaluate(host, {**inputs, "data_rate_gbps": inputs["data_rate_gbps"] * faster})
    assert np.all(fast <= slow * (1 + 1e-12))


@given(hosts)
@settings(max_examples=10, deadline=None)
def test_a_host_is_found_again_from_its_latencies(host: dict[str, float]) -> None:
    size, rate = np.repeat(SIZES, RATES.size), np.tile(RATES, SIZES.size)
    inputs = {"size_bytes": size, "data_rate_gbps": rate}
    found = fit(VERBS, inputs, VERBS.evaluate(host, inputs), data="made up")
    assert found.values == pytest.approx(host, rel=1e-3)


@given(st.floats(1.0, 50.0), st.floats(0.1, 3.0), st.floats(0.1, 5.0), st.floats(0.01, 3.0))
@settings(max_examples=10, deadline=None)
def test_a_segmented_path_is_found_again_from_its_latencies(
    base: float, first: float, split: float, rest: float
) -> None:
    form = segmented_latency(packet_bytes=8800)
    values = {
        "base_us": base,
        "first_ns_per_byte": first,
        "split_us": split,
        "rest_ns_per_byte": rest,
    }
    inputs = {"size_bytes": np.linspace(100, 20_000, 40)}
    found = fit(form, inputs, form.evaluate(values, inputs), data="made up")
    assert found.values == pytest.approx(values, rel=1e-3)


def test_up_to_its_limits_every_form_is_the_single_packet_one() -> None:
    single = single_packet_latency().evaluate(
        {"base_us": 20.0, "byte_ns": 1.1}, {"size_bytes": SIZES}
    )
    below = SIZES <= 4096
    segmented = segmented_latency(packet_bytes=4096).evaluate(
        {"base_us": 20.0, "first_ns_per_byte": 1.1, "split_us": 1.0, "rest_ns_per_byte": 0.2},
        {"size_bytes": SIZES},
    )
    stepped = stepped_latency(limit_bytes=4096).evaluate(
        {"base_us": 20.0, "byte_ns": 1.1, "step_us": 1.0}, {"size_bytes": SIZES}
    )
    assert np.allclose(segmented[below], single[below])
    assert np.allclose(stepped[below], single[below])
    assert np.allclose(stepped[~below], single[~below] + 1.0)
