"""The log of strangers: readable under a flood, and honest about what it left out."""

from weft.measure.peer.server import LINES_PER_S, LogThrottle


def test_a_flood_is_counted_not_copied():
    lines: list[str] = []
    now = [10.0]
    note = LogThrottle(lines.append, clock=lambda: now[0])
    for number in range(1000):
        note(f"stranger {number}")
    assert len(lines) == LINES_PER_S
    now[0] = 11.5
    note("one more")
    assert lines[LINES_PER_S:] == [f"{1000 - LINES_PER_S} more lines left out", "one more"]


def test_the_last_count_is_told_at_the_end():
    lines: list[str] = []
    note = LogThrottle(lines.append, clock=lambda: 1.0)
    for _ in range(LINES_PER_S + 1):
        note("x")
    note.flush()
    note.flush()
    assert lines[-1] == "1 more lines left out"
    assert len(lines) == LINES_PER_S + 1
