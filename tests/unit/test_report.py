"""The HTML report: complete, self-contained, escaped, and honest about what it leaves out."""

from functools import partial
from html.parser import HTMLParser

import numpy as np
import pytest

from weft.plot import Section, render_report
from weft.plot.drawings import colour_of
from weft.plot.drawings import sweep as draw_sweep
from weft.plot.html_page import row_table
from weft.plot.report import MOST_TABLES
from weft.plot.report_figures import (
    _collect_lines,
    _find_bands,
    find_swept_setting,
    find_utilisation,
    label_records,
    split_lines,
)
from weft.plot.style import figure
from weft.records import (
    Distribution,
    Histogram,
    Provenance,
    Record,
    Scalar,
    Series,
    Topology,
    describe_run,
)

VOID = {"meta", "br", "hr", "link", "img", "input"}


class Balanced(HTMLParser):
    """Fails on a tag that is closed but not open; collects tags and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(html: str) -> Balanced:
    parser = Balanced()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


def distribution(scale: float = 1e6, n: int = 4000) -> Distribution:
    histogram = Histogram()
    histogram.record_many(np.random.default_rng(1).exponential(scale, n).astype(np.int64))
    return Distribution("ps", histogram)


def record(name: str = "incast", **changes: object) -> Record:
    fields = {
        "kind": "simulation",
        "name": name,
        "settings": {"load": 0.5, "mtu": "4 KiB"},
        "quantities": {
            "probe.rtt": distribution(),
            "senders.goodput": Scalar(5e9, "b/s"),
            "sw1.queue": Series("ps", "B", (0, 1e9), (0, 100)),
        },
        "tables": {"ports": [{"port": "p1", "sent": 12}]},
        "topology": Topology((("h1", "host"), ("s1", "switch")), ((0, 1),)),
        "notes": ["warm-up 1 ms"],
        "provenance": Provenance(weft_version="0.1.0", seed=7, scenario_digest="ab12cd"),
    }
    return Record(**(fields | changes))


def sweep(n: int, **changes: object) -> list[Record]:
    return [record(settings={"load": i / n}, **changes) for i in range(n)]


def test_a_report_shows_everything_a_record_holds():
    html = render_report([record()], "A run", runs=[describe_run(["weft", "simulate", "x.toml"])])
    parsed(html)
    for shown in (
        "probe.rtt",
        "4,000",
        "p99.9",
        "5 Gb/s",
        "sw1.queue",
        "warm-up 1 ms",
        "ab12cd",
        "seed 7",
        "weft simulate x.toml",
        "1 host, 1 switch, 1 link",
    ):
        assert shown in html


def test_a_report_fetches_nothing_and_runs_no_script():
    tags = parsed(render_report(sweep(4), "A sweep")).seen
    assert not {tag for tag, _ in tags} & {"script", "link", "img", "iframe", "object"}
    references = [a[k] for _, a in tags for k in ("href", "xlink:href", "src") if a.get(k)]
    assert all(reference.startswith("#") for reference in references)


def test_ids_are_unique_so_that_no_figure_borrows_from_another():
    tags = parsed(render_report(sweep(4), "A sweep")).seen
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_every_text_is_escaped():
    evil = "<script>alert('&')</script>$x^{"
    hostile = [
        record(
            evil,
            settings={evil: evil, "load": i},
            quantities={
                f"{evil}.d": distribution(),
                f"{evil}.s": Scalar(i, evil),
                f"{evil}.t": Series(evil, evil, (0, 1), (0, 1)),
            },
            tables={evil: [{evil: evil}]},
            topology=Topology(((evil, "host"), (evil, "switch")), ((0, 1),)),
            notes=[evil],
            provenance=Provenance(weft_version=evil, parameters=evil, scenario_digest=evil),
        )
        for i in range(4)
    ]
    section = Section(title=evil, text=evil, rows=[{evil: evil}])
    html = render_report(hostile, evil, [section], runs=[describe_run([evil], **{evil: evil})])
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    parsed(html)


def test_the_same_records_give_the_same_page():
    assert render_report(sweep(3), "x") == render_report(sweep(3), "x")


def test_sections_of_a_study_come_first_with_their_markup_as_given():
    svg = '<svg role="img"><g></g></svg>'
    rows = [{"point": "1 sender", "published": "1.9 µs", "ours": "2.0 µs"}]
    section = Section(title="Figure 12", text="As published.", markup=svg, rows=rows)
    html = render_report([record()], "Study", [section])
    assert html.index("Figure 12</h2>") < html.index("Summary</h2>")
    assert svg in html
    assert "1.9 µs" in html


def test_columns_of_figures_stand_right_and_names_left():
    html = row_table([{"point": "1 sender", "ours": "2.0 µs", "by": "model"}])
    assert "<td>1 sender</td><td class=n>2.0 µs</td><td>model</td>" in html
    assert "<td>64</td><td class=n>2</td>" in row_table([{"size": 64, "ours": 2}])


def test_intervals_stand_beside_the_quantiles_they_bound():
    d = distribution(n=100)
    html = render_report([record(quantities={"rtt": d})], "x")
    assert ", …]" in html
    assert "too few" in html


def test_what_a_report_leaves_out_it_says():
    many = {f"port{i}.wait": distribution(n=10) for i in range(80)}
    series = {f"port{i}.queue": Series("ps", "B", (0, 1), (0, 1)) for i in range(20)}
    table = {"ports": [{"port": i} for i in range(400)]}
    html = render_report([record(quantities=many | series, tables=table)], "x")
    assert "20 more rows not shown" in html
    assert "68 more distributions not drawn: port12.wait" in html
    assert "8 more series not drawn" in html
    assert "100 more rows not shown" in html


def test_tables_of_many_records_are_cut_and_counted():
    points = sweep(MOST_TABLES + 3, tables={"ports": [{"port": 1}]}, quantities={})
    assert "3 more records&#x27; tables not shown" in render_report(points, "x")
    assert "tables not shown" not in render_report(points[:-3], "x")


def test_a_long_table_of_ports_is_summed_up_by_kind_of_link_and_shows_the_busiest():
    ports = [
        {"busy_percent": i / 10, "node": f"h{i}", "peer": f"tor{i // 9}", "port": 1, "vl": 0}
        for i in range(400)
    ]
    html = render_report([record(tables={"ports": ports})], "x")
    assert "<td>h to tor</td><td class=n>0</td><td class=n>400</td><td class=n>19.95</td>" in html
    assert "the 300 rows with the highest busy_percent; 100 more rows not shown" in html
    first = "<td>h399</td><td class=n>1</td><td>tor44</td><td class=n>0</td><td class=n>39.9</td>"
    assert html.index(first) < html.index("<td>h100</td>")
    assert "<td>h99</td>" not in html


def test_a_rank_that_did_not_end_comes_before_the_last_that_did():
    ranks = [{"completion_us": i or None, "host": f"h{i}", "rank": i} for i in range(301)]
    html = render_report([record(tables={"ranks": ranks})], "x")
    assert html.index("<td>h0</td>") < html.index("<td>h300</td>") < html.index("<td>h2</td>")
    assert "<td>h1</td>" not in html


def test_counts_have_their_thousands_apart():
    html = render_report([record(quantities={"fabric.events": Scalar(15913840, "")})], "x")
    assert "15,913,840" in html


def test_lines_beyond_eight_get_a_further_figure_and_none_is_dropped():
    lines = {f"line{i}": i for i in range(19)}
    figures = split_lines(lines)
    assert [len(lines) for lines in figures] == [8, 8, 3]
    assert {label for chunk in figures for label in chunk} == set(lines)
    html = render_report(sweep(11, quantities={"rtt": distribution(n=50)}), "x")
    assert html.count('aria-label="cdf of rtt ') == 2
    assert "lines drawn" not in html


def test_far_too_many_lines_are_chosen_evenly_and_counted():
    figures = split_lines({f"line{i}": i for i in range(100)})
    assert [len(lines) for lines in figures] == [8] * 6
    assert (figures[0]["line0"], figures[-1]["line99"]) == (0, 99)
    html = render_report(sweep(49, quantities={"rtt": distribution(n=50)}), "x")
    assert "48 of 49 lines drawn." in html


def repeated(x: int, repetition: int, rate: float) -> Record:
    settings = {"x": x, "repetition": repetition}
    return record(settings=settings, quantities={"rate": Scalar(rate, "b/s")})


def test_repetitions_are_a_band_around_their_median():
    records = [repeated(x, n, 100 * x + n) for x in (1, 2, 3) for n in (1, 2, 9)]
    points = label_records(records)
    lines = _collect_lines(points, "x", "rate", "value")
    assert lines == {"": {x: [100 * x + n for n in (1, 2, 9)] for x in (1.0, 2.0, 3.0)}}
    assert _find_bands(lines) == {"": {x: (100 * x + 1, 100 * x + 9) for x in (1.0, 2.0, 3.0)}}
    assert "band: their range" in render_report(records, "x")
    single = [repeated(x, 1, 100 * x) for x in (1, 2, 3)]
    assert "band" not in render_report(single, "x").split("</style>")[1]


def test_a_band_is_not_cut_off_at_the_top():
    drawn = axes_of({"": {1.0: 10.0, 2.0: 20.0}}, {"": {1.0: (9.0, 500.0), 2.0: (19.0, 21.0)}})
    assert drawn.get_ylim()[1] > 500
    assert len(drawn.collections) == 1
    assert not axes_of({"": {1.0: 10.0, 2.0: 20.0}}, None).collections


def axes_of(lines, bands):
    drawn = figure(
        partial(draw_sweep, lines=lines, unit="", quantity="q", setting="s", bands=bands)
    )
    return drawn.axes[0]


def stream(name: str, x: int, over: str = "tcp") -> Record:
    return record(name, settings={"x": x, "over": over}, quantities={"rate": Scalar(x, "b/s")})


def test_a_sweep_of_one_point_is_no_line_and_another_test_is_no_part_of_it():
    sizes = [stream("bandwidth", x) for x in (1, 2, 3)]
    alone, other = stream("bandwidth", 9, "udp"), stream("latency", 5)
    lines = _collect_lines(label_records([*sizes, alone]), "x", "rate", "value")
    assert lines == {"tcp": {1.0: [1.0], 2.0: [2.0], 3.0: [3.0]}}
    html = render_report([*sizes, alone, other], "x")
    assert "bandwidth rate over x" in html
    assert "latency rate over x" not in html


def test_a_note_that_differs_in_figures_stands_once():
    notes = ["noisy host: lost 54.6 % of its time", "noisy host: lost 3 % of its time"]
    html = render_report([record(settings={"x": i}, notes=[n]) for i, n in enumerate(notes)], "x")
    assert html.count("noisy host") == 1
    assert "lost 54.6 % of its time (and with other figures 1 times)" in html


def test_provenance_names_the_records_it_is_of():
    seeds = [
        record(settings={"x": i}, provenance=Provenance(weft_version="0.1.0", seed=i))
        for i in range(2)
    ]
    section = render_report(seeds, "x").split("<h2>Provenance</h2>")[1]
    assert section.index("x=0") < section.index("x=1")


def test_links_are_coloured_by_their_busier_direction():
    rows = [
        {"node": "h1", "port": 1, "peer": "s1", "vl": 0, "busy_percent": 30.0},
        {"node": "h1", "port": 1, "peer": "s1", "vl": 1, "busy_percent": 20.0},
        {"node": "s1", "port": 4, "peer": "h1", "vl": 0, "busy_percent": 10.0},
    ]
    observed = record(tables={"ports": rows})
    assert find_utilisation(observed) == {(0, 1): pytest.approx(0.5)}
    html = render_report([observed], "x")
    assert "how busy each link was in incast, at most 50% (h1 to s1)" in html
    assert colour_of(0.5).lower() in html
    assert (colour_of(0), colour_of(1), colour_of(7)) == ("#94A3B8", "#C21E1E", "#C21E1E")
    assert find_utilisation(record()) == {}


def test_a_quantity_that_a_sweep_does_not_change_is_named_not_drawn():
    records = [
        record(settings={"load": i}, quantities={"drops": Scalar(0, ""), "rate": Scalar(i, "b/s")})
        for i in range(4)
    ]
    html = render_report(records, "x")
    assert "The same at each load: drops." in html


def test_records_without_samples_or_without_anything_still_make_a_page():
    empty = Distribution("ps", Histogram())
    assert "no samples" in render_report([record(quantities={"rtt": empty})], "x")
    parsed(render_report([record(quantities={}, tables={}, topology=None, notes=[])], "x"))
    parsed(render_report([], "nothing"))


def test_labels_name_only_the_settings_that_differ():
    records = [record(settings={"load": x, "mtu": "4 KiB"}) for x in (0.1, 0.2, 0.2)]
    points = label_records(records)
    assert points.labels == ("load=0.1", "load=0.2", "load=0.2 #2")
    assert points.shared == {"mtu": "4 KiB"}


@pytest.mark.parametrize(
    ("values", "swept"), [((1, 2, 3), "x"), ((1, 2), None), (("a", "b", "c"), None)]
)
def test_a_sweep_needs_three_values_of_a_number(values, swept):
    assert find_swept_setting(label_records([record(settings={"x": v}) for v in values])) == swept


def test_percentiles_over_a_load_are_one_figure_against_that_load():
    lines = {
        f"probe.{name}": Series("b/s", "ps", (0, 1e9, 2e9), (1e6 * n, 2e6 * n, 9e6 * n))
        for n, name in enumerate(("p50", "p99", "p99.9"), 1)
    }
    record = Record(
        kind="measurement",
        name="saturation",
        quantities=lines,
        provenance=Provenance(weft_version="0"),
    )
    page = render_report([record], "load")
    assert page.count("<svg") == 1
    assert "achieved load (Gb/s)" in page
    assert "Against load" in page
