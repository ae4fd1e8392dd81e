"""Random workloads, for laws of several suites."""

from __future__ import annotations

from hypothesis import strategies as st

from weft.simulate.workload import ENDS, STARTS, Builder, Operations


@st.composite
def workloads(draw: st.DrawFn) -> Operations:
    """Random operations, each message with its receive, dependencies on earlier operations."""
    ranks = draw(st.integers(1, 4))
    builder = Builder(ranks)
    of_rank: list[list[int]] = [[] for _ in range(ranks)]
    rank = st.integers(0, ranks - 1)
    for _ in range(draw(st.integers(0, 12))):
        a, b, cpu = draw(rank), draw(rank), draw(st.integers(0, 3))
        size, tag = draw(st.integers(0, 5000)), draw(st.integers(0, 2))
        if draw(st.booleans()):
            of_rank[a].append(builder.compute(a, size * 1000, cpu=cpu))
        else:
            of_rank[a].append(builder.send(a, b, size, tag=tag, cpu=cpu))
            of_rank[b].append(builder.receive(b, a, size, tag=tag, cpu=cpu))
    for mine in of_rank:
        for i, operation in enumerate(mine[1:], 1):
            if draw(st.booleans()):
                kind = draw(st.sampled_from([ENDS, STARTS]))
                builder.require(operation, mine[draw(st.integers(0, i - 1))], kind)
    return builder.build()
