"""How much does a bulk stream slow down a small message beside it, on this machine?

Opens a peer on loopback, measures ping-pong latency alone and then the latency of a probe beside
more and more load, and writes a report. Run it: python examples/probe_beside_load.py
"""

from weft.measure import open_peer, saturation
from weft.plot import render_report
from weft.records import statistic, write_records, write_text

with open_peer("local") as peer:
    run = saturation(peer, over="tcp", size="16 KiB", steps=4, duration="100 ms", wait="block")

for step in run.records[:-1]:
    load = statistic(step.quantities["achieved"], "value") or 0
    p99 = statistic(step.quantities["probe.half_rtt"], "p99") or 0
    print(f"{load / 1e9:6.2f} Gb/s beside the probe: p99 {p99 / 1e6:8.1f} us")

write_records("probe-beside-load.jsonl", run.records)
write_text("probe-beside-load.html", render_report(run.records, "A probe beside load"))
