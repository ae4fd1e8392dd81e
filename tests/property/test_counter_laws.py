"""Laws of counter differences, over any start and any movement."""

from hypothesis import given
from hypothesis import strategies as st

from weft.host.machine.devices import subtract_counter

MOVED = st.integers(0, 2**31 - 1)


@given(st.integers(0, 2**32 - 1), MOVED)
def test_a_32_bit_counter_gives_its_movement_back_across_the_wrap(start, moved):
    result, note = subtract_counter(start, (start + moved) % 2**32)
    assert result == moved
    assert note == ("wrapped" if start + moved >= 2**32 else "")


@given(st.integers(0, 2**63), st.integers(0, 2**62))
def test_a_64_bit_counter_gives_its_movement_back(start, moved):
    assert subtract_counter(start, start + moved) == (moved, "")


@given(st.sampled_from([4, 8, 16, 32]), st.data())
def test_a_saturating_counter_never_claims_more_than_it_counted(bits, data):
    top = 2**bits - 1
    start = data.draw(st.integers(0, top))
    moved = data.draw(st.integers(0, 2 * top))
    result, note = subtract_counter(start, min(top, start + moved), bits)
    assert result <= moved
    assert result == moved or note == "saturated"
