"""Figures: what is drawn, in which unit, and that same data gives same bytes."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex

from weft.plot import (
    PublishedPoint,
    cdf,
    cdf_tail,
    compare_published,
    figure,
    quantile_bars,
    series,
    sweep,
    to_png,
    to_svg,
    topology,
)
from weft.plot.drawings import Graph, curves, group_hosts, layout, percentile_label, split_layers
from weft.plot.style import label_log_axis
from weft.records import Distribution, Histogram, Series


def distribution(samples, unit: str = "ps") -> Distribution:
    histogram = Histogram()
    histogram.record_many(np.asarray(samples, dtype=np.int64))
    return Distribution(unit, histogram)


def rtts() -> dict[str, Distribution]:
    random = np.random.default_rng(3)
    return {
        "quiet": distribution(random.exponential(1e6, 20_000) + 1e6),
        "loaded": distribution(random.exponential(3e6, 20_000) + 1e6),
    }


def axes_of(draw):
    return figure(draw).axes[0]


def texts(figure) -> str:
    return " ".join(ElementTree.fromstring(to_svg(figure)).itertext())


DRAWINGS = {
    "cdf": lambda ax: cdf(ax, rtts(), "probe.rtt"),
    "cdf_tail": lambda ax: cdf_tail(ax, rtts(), "probe.rtt"),
    "quantile_bars": lambda ax: quantile_bars(
        ax, rtts(), "probe.rtt", published={"quiet": [2e6, 8e6]}
    ),
    "series": lambda ax: series(ax, {"q": Series("ps", "B", (0, 1e9), (0, 9000))}, "queue"),
    "sweep": lambda ax: sweep(ax, {"p50": {1: 2e6, 2: 3e6}}, "ps", "rtt", "load"),
    "published": lambda ax: compare_published(
        ax, [PublishedPoint(label="1 sender", published=2e6, ours=1.9e6)], "ps", "rtt"
    ),
    "topology": lambda ax: topology(ax, *fat_tree(4, 4, 2)),
}


@pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)
def test_the_same_data_gives_the_same_svg_and_png_bytes(draw):
    assert to_svg(figure(draw)) == to_svg(figure(draw))
    assert to_png(figure(draw)) == to_png(figure(draw))


@pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)
def test_svgs_are_well_formed_undated_and_fetch_nothing(draw):
    svg = to_svg(figure(draw), title='a "title" <b>')
    assert ElementTree.fromstring(svg).get("aria-label") == 'a "title" <b>'
    assert "<dc:date>" not in svg
    assert "href=" not in svg.replace('xlink:href="#', "")


@pytest.mark.parametrize(
    ("name", "x_unit", "y_unit"),
    [
        ("cdf", "(µs)", "(%)"),
        ("cdf_tail", "(µs)", "percentile"),
        ("series", "(ms)", "(KiB)"),
        ("sweep", "load", "(µs)"),
        ("published", "(µs)", ""),
    ],
)
def test_both_axes_name_their_units(name, x_unit, y_unit):
    ax = axes_of(DRAWINGS[name])
    assert x_unit in ax.get_xlabel()
    assert y_unit in ax.get_ylabel()


def test_a_cdf_rises_from_0_to_100_percent_through_the_median():
    (line, _) = axes_of(DRAWINGS["cdf"]).get_lines()
    x, y = line.get_data()
    assert (y[0], y[-1]) == (0, 100)
    assert np.all(np.diff(x) >= 0)
    assert x[np.searchsorted(y, 50)] == pytest.approx(rtts()["quiet"].quantile(0.5) / 1e6, rel=0.01)


def test_the_tail_view_puts_p99_9_at_three_nines():
    (line, _) = axes_of(DRAWINGS["cdf_tail"]).get_lines()
    x, nines = line.get_data()
    shown = np.interp(3, nines, x)
    assert shown == pytest.approx(rtts()["quiet"].quantile(0.999) / 1e6, rel=0.02)
    assert [percentile_label(n) for n in (0, 1, 3, 5)] == ["p0", "p90", "p99.9", "p99.999"]


def test_empty_distributions_are_left_out_of_every_drawing():
    both = {"none": distribution([]), "some": distribution([1, 2, 3])}
    assert len(axes_of(lambda ax: cdf(ax, both, "x")).get_lines()) == 1
    for draw in (cdf, cdf_tail, quantile_bars):
        figure(lambda ax, draw=draw: draw(ax, {"none": distribution([])}, "x"))


def test_negative_samples_can_be_drawn():
    ax = axes_of(lambda ax: cdf(ax, {"d": distribution(range(-500, 500))}, "difference"))
    assert ax.get_xscale() == "linear"
    assert ax.get_xlim()[0] < 0


def test_a_wide_distribution_is_drawn_on_a_log_axis():
    wide = {"d": distribution([1000, *range(10_000, 1_000_000, 10_000)])}
    assert axes_of(lambda ax: cdf(ax, wide, "x")).get_xscale() == "log"


def test_a_long_series_is_thinned_but_keeps_its_peak():
    y = np.zeros(50_000)
    y[31_415] = 7
    long = Series("ps", "", tuple(range(50_000)), tuple(y))
    (line,) = axes_of(lambda ax: series(ax, {"q": long}, "queue")).get_lines()
    assert len(line.get_xdata()) <= 1300
    assert max(line.get_ydata()) == 7


def test_published_points_carry_the_ratio_of_ours_to_theirs():
    points = [
        PublishedPoint(label="a", published=2.0, ours=1.9),
        PublishedPoint(label="b", published=0, ours=1),
    ]
    shown = texts(figure(lambda ax: compare_published(ax, points, "", "x")))
    assert "0.95×" in shown
    assert "–" in shown


def test_the_legend_adds_height_rather_than_covering_data():
    single = {"a": distribution([1, 2])}
    many = {f"a rather long label {i}": distribution([1, 2]) for i in range(8)}
    heights = [figure(lambda ax, d=d: cdf(ax, d, "x")).get_figheight() for d in (single, many)]
    assert heights[1] > heights[0]


def fat_tree(hosts: int, leaves: int, spines: int):
    """(nodes, links): `hosts` on each leaf, each leaf on each spine."""
    n = hosts * leaves
    nodes = [(f"h{i}", "host") for i in range(n)]
    nodes += [(f"leaf{i}", "switch") for i in range(leaves)]
    nodes += [(f"spine{i}", "switch") for i in range(spines)]
    links = [(i, n + i // hosts) for i in range(n)]
    links += [(n + i, n + leaves + j) for i in range(leaves) for j in range(spines)]
    return nodes, links


def test_layers_are_distances_from_the_hosts():
    layers = split_layers(Graph(*fat_tree(4, 3, 2)))
    assert [len(layer) for layer in layers] == [12, 3, 2]


def test_switches_that_no_host_reaches_are_still_drawn():
    nodes = [("h", "host"), ("s", "switch"), ("lost", "switch")]
    assert split_layers(Graph(nodes, [(0, 1)])) == [[0], [1], [2]]
    assert len(layout(Graph([("s1", "switch"), ("s2", "switch")], [(0, 1)]))) == 2


def test_every_node_has_its_own_place():
    places = layout(Graph(*fat_tree(8, 6, 3)))
    assert len(set(places.values())) == len(places) == 48 + 6 + 3


def test_a_tree_is_laid_out_without_crossings_whatever_the_order_of_its_hosts():
    nodes = [(f"h{i}", "host") for i in range(6)] + [("a", "switch"), ("b", "switch")]
    places = layout(Graph(nodes, [(i, 6 + i % 2) for i in range(6)]))
    of_a = [places[i][0] for i in (0, 2, 4)]
    of_b = [places[i][0] for i in (1, 3, 5)]
    assert max(of_a) < min(of_b) or max(of_b) < min(of_a)


def test_more_than_200_nodes_are_drawn_with_the_hosts_of_a_switch_as_one():
    grouped = group_hosts(Graph(*fat_tree(40, 10, 2)))
    assert sorted(name for name, kind in grouped.nodes if kind == "hosts") == ["40 hosts"] * 10
    drawing = figure(lambda ax: topology(ax, *fat_tree(40, 10, 2)))
    assert texts(drawing).count("40 hosts") == 10


def test_200_nodes_are_drawn_one_by_one_201_grouped_and_200_groups_still_as_groups():
    whole = texts(figure(lambda ax: topology(ax, *fat_tree(19, 9, 20))))  # 171 + 9 + 20 = 200
    assert "9 switches" not in whole
    assert "19 hosts" not in whole
    grouped = texts(figure(lambda ax: topology(ax, *fat_tree(19, 9, 21))))  # 201
    assert grouped.count("19 hosts") == 9
    most = texts(figure(lambda ax: topology(ax, *fat_tree(2, 96, 8))))  # 96 groups + 96 + 8 = 200
    assert "spine7" in most
    assert "192 hosts" not in most


def test_switches_and_hosts_have_the_same_colours_with_and_without_names():
    def colours(hosts: int, leaves: int) -> dict[str, str]:
        axes = axes_of(lambda ax: topology(ax, *fat_tree(hosts, leaves, 2)))
        named = {t.get_text()[:1]: t.get_bbox_patch().get_edgecolor() for t in axes.texts}
        dots = {line.get_marker(): line.get_color() for line in axes.lines}
        return {
            "switch": to_hex(named["s"]),
            "host": to_hex(named["h"]) if "h" in named else to_hex(dots["o"]),
        }

    assert colours(2, 2) == colours(20, 5)
    assert len(set(colours(2, 2).values())) == 2


def test_thousands_of_nodes_are_drawn_as_one_box_for_each_layer():
    shown = texts(figure(lambda ax: topology(ax, *fat_tree(20, 250, 8))))
    assert all(part in shown for part in ("5000 hosts", "250 switches", "8 switches", "2000 links"))
    assert axes_of(lambda ax: topology(ax, *fat_tree(20, 250, 8))).get_xlim() == (0, 1)


def test_a_setting_that_doubles_is_drawn_on_a_log_axis_with_readable_sizes():
    rates = {64.0 * 4**i: 1e8 * 3**i for i in range(8)}
    axes = axes_of(lambda ax: sweep(ax, {"": rates}, "b/s", "throughput", "size_bytes"))
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    drawn = texts(figure(lambda ax: sweep(ax, {"": rates}, "b/s", "throughput", "size_bytes")))
    assert "64 B" in drawn
    assert "1 MiB" in drawn
    assert "size_bytes" not in drawn


def test_a_setting_of_few_values_keeps_its_axes_from_zero():
    axes = axes_of(lambda ax: sweep(ax, {"": {1: 10.0, 2: 500.0, 3: 9.0}}, "ps", "rtt", "window"))
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")
    assert axes.get_ylim()[0] == 0


def test_a_log_axis_of_little_more_than_a_decade_has_plain_numbers():
    drawn = figure(lambda ax: _log_axis(ax, [0.02, 0.65]))
    assert "mathdefault" not in to_svg(drawn)
    assert {"0.1", "0.06"} <= {t.get_text() for t in drawn.axes[0].get_yticklabels(which="both")}


def _log_axis(ax, values):
    ax.plot([0, 1], values)
    ax.set_yscale("log")
    label_log_axis(ax.yaxis)


def test_a_lone_point_has_no_line_and_points_of_a_sweep_have_one():
    lines = {"lone": {1: 2.0}, "swept": {1: 2.0, 2: 3.0}}
    lone, swept = axes_of(lambda ax: sweep(ax, lines, "ps", "rtt", "window")).get_lines()
    assert (lone.get_linestyle(), swept.get_linestyle()) == ("None", "--")


def test_three_values_far_apart_are_too_few_for_a_log_axis_and_four_are_enough():
    for count, scale in ((3, "linear"), (4, "log")):
        rates = {float(10**n): 1.0 for n in range(count)}
        axes = axes_of(lambda ax, r=rates: sweep(ax, {"": r}, "b/s", "rate", "window"))
        assert axes.get_xscale() == scale


def test_many_values_close_to_each_other_keep_a_linear_axis():
    rates = {float(n): 1.0 for n in range(10, 16)}
    axes = axes_of(lambda ax: sweep(ax, {"": rates}, "b/s", "rate", "window"))
    assert axes.get_xscale() == "linear"


def test_the_rarest_percentile_and_the_last_layer_are_inside_the_axes():
    tail = axes_of(DRAWINGS["cdf_tail"])
    assert all(max(line.get_ydata()) < tail.get_ylim()[1] for line in tail.get_lines())
    low, high = axes_of(lambda ax: topology(ax, *fat_tree(2, 2, 1))).get_ylim()
    assert -1 < low < 0  # half a row around the hosts below and the spines above
    assert 2 < high < 3


def test_a_bar_joins_the_published_value_with_ours():
    points = [PublishedPoint(label="a", published=2.0, ours=1.5)]
    axes = axes_of(lambda ax: compare_published(ax, points, "", "x"))
    (bar,) = (c for c in axes.collections if isinstance(c, LineCollection))
    assert [segment.tolist() for segment in bar.get_segments()] == [[[2.0, 0.0], [1.5, 0.0]]]


def test_the_tail_view_has_ticks_at_the_percentiles_alone():
    axes = axes_of(lambda ax: cdf_tail(ax, rtts(), "rtt"))
    assert axes.yaxis.get_minorticklocs().tolist() == []
    assert axes.yaxis.get_majorticklocs()[:3].tolist() == pytest.approx([0, 0.30103, 1])


@pytest.mark.parametrize(
    ("lengths", "columns"),
    [((5, 5), 2), ((5,) * 6, 4), ((5, 50), 1), ((50, 5), 1), ((22, 22, 22), 3), ((90, 90), 1)],
)
def test_a_legend_has_as_many_columns_as_its_longest_label_lets_fit(lengths, columns):
    labels = {f"{n}".ljust(length, "x"): {1: 2.0} for n, length in enumerate(lengths)}
    axes = axes_of(lambda ax: sweep(ax, labels, "ps", "rtt", "window"))
    assert axes.get_legend()._ncols == columns


def test_bars_reach_the_median_and_the_tail_and_diamonds_are_published_values():
    published = {"quiet": [2e6, 8e6]}
    axes = axes_of(lambda ax: quantile_bars(ax, rtts(), "rtt", 0.99, published))
    tail, median = axes.patches[0], axes.patches[1]
    quiet = rtts()["quiet"]
    assert tail.get_width() == pytest.approx(quiet.quantile(0.99) / 1e6)
    assert median.get_width() == pytest.approx(quiet.quantile(0.5) / 1e6)
    diamonds = [line for line in axes.get_lines() if line.get_marker() == "D"]
    assert [line.get_xdata().tolist() for line in diamonds] == [[2.0, 8.0], []]
    assert diamonds[0].get_ydata().tolist() == [0, 0]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first label is at the top
    assert axes.get_xlabel() == "rtt (µs)\ndark: median, light: p99, ◇: published"
    unpublished = axes_of(lambda ax: quantile_bars(ax, rtts(), "rtt"))
    assert unpublished.get_xlabel() == "rtt (µs)\ndark: median, light: p99.9"


def test_whiskers_are_the_interval_and_none_where_samples_are_too_few():
    def whiskers(samples):
        axes = axes_of(lambda ax: quantile_bars(ax, {"a": distribution(samples)}, "x", 0.5))
        (segment,) = axes.containers[1].errorbar.lines[2][0].get_segments()
        return segment[:, 0].tolist()

    samples = range(1_000_000, 1_001_000)
    low, high = distribution(samples).interval(0.5)
    assert whiskers(samples) == pytest.approx([low / 1e6, high / 1e6])
    assert whiskers([5_000_000]) == pytest.approx([5.0, 5.0])


def test_the_unit_of_curves_is_that_of_their_median():
    """Of 2 ns, 3 µs and 5 ms: µs."""
    lines = {"a": Series("b/s", "ps", (1e9, 2e9, 3e9), (2e3, 3e6, 5e9))}
    axes = figure(lambda ax: curves(ax, lines, "latency")).axes[0]
    assert axes.get_ylabel() == "latency (µs)"
    assert axes.lines[0].get_ydata().tolist() == [0.002, 3, 5000]
