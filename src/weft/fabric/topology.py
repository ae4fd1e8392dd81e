"""Builders of well-known topologies, wired and routed.

Each takes the counts that define it, then `rate` ("4xFDR" or "56 Gb/s") and `delay` ("50 ns", about
10 m of cable) of every link or of each tier of links from the hosts up, `lanes` and the name of a
`routing`. Ports are assigned in the order of wiring: hosts first, then upwards. Entry points:
`fat_tree`, `leaf_spine` and the others in `TOPOLOGIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.errors import InputError
from weft.fabric.fabric import MAX_PORTS, Fabric, Link, Node, Port, link_rate
from weft.fabric.routing import route
from weft.fabric.soundness import check_fabric, check_routes
from weft.units import parse_time

# Far above any real fabric, far below what would fill the memory.
MAX_NODES = 1_000_000

ByTier = str | Sequence[str]  # of every link, or of each tier from the hosts up


class _Draft:
    """A fabric under construction: nodes get ports as they are linked. Hosts are added first."""

    def __init__(self, name: str, rate: ByTier, delay: ByTier, tiers: int) -> None:
        self._name = name
        rates, delays = self._by_tier("rate", rate, tiers), self._by_tier("delay", delay, tiers)
        parsed = [link_rate(text, f"{name} rate") for text in rates]
        delays_ps = [parse_time(text, f"{name} delay") for text in delays]
        self._cables = [  # rate, delay and the rate's name, by tier
            (rate.data_bps, delay_ps, str(rate))
            for rate, delay_ps in zip(parsed, delays_ps, strict=True)
        ]
        self._names: list[str] = []
        self._hosts = 0
        self._used: list[int] = []
        self._links: list[Link] = []

    def _by_tier(self, key: str, value: ByTier, tiers: int) -> Sequence[str]:
        values = [value] if isinstance(value, str) else value
        if len(values) == 1:
            return [values[0]] * tiers
        if len(values) != tiers:
            raise InputError(
                f"{self._name} {key}",
                f"{len(values)} values ({', '.join(values)}), tiers of links: {tiers}",
                f"give 1 for all, or {tiers} from the hosts up" if tiers > 1 else "give 1",
            )
        return values

    def hosts(self, count: int) -> list[int]:
        self._hosts = count
        return self._add("h", count)

    def switches(self, prefix: str, count: int) -> list[int]:
        return self._add(prefix, count)

    def _add(self, prefix: str, count: int) -> list[int]:
        first = len(self._names)
        if first + count > MAX_NODES:
            raise InputError(
                self._name, f"{first + count} nodes is above {MAX_NODES}", "build a smaller one"
            )
        self._names += [f"{prefix}{i}" for i in range(count)]
        self._used += [0] * count
        return list(range(first, first + count))

    def link(self, a: int, b: int, tier: int = 0) -> None:
        ends = Port(a, self._next(a)), Port(b, self._next(b))
        rate_bps, delay_ps, rate_name = self._cables[tier]
        self._links.append(Link(*ends, rate_bps, delay_ps, rate_name))

    def link_in_turn(self, hosts: Sequence[int], switches: Sequence[int]) -> None:
        """Give every switch an equal run of the hosts."""
        each = len(hosts) // len(switches)
        for i, host in enumerate(hosts):
            self.link(host, switches[i // each])

    def _next(self, node: int) -> int:
        if self._used[node] == MAX_PORTS:
            raise InputError(
                f"{self._name} node {self._names[node]}",
                f"needs over {MAX_PORTS} ports",
                "link fewer nodes to it",
            )
        self._used[node] += 1
        return self._used[node]

    def fabric(self, lanes: int, routing: str) -> Fabric:
        nodes = tuple(
            Node(name, "host" if i < self._hosts else "switch", self._used[i])
            for i, name in enumerate(self._names)
        )
        bare = Fabric(self._name, nodes, tuple(self._links), lanes)
        return check_routes(route(check_fabric(bare), routing))


def _require_at_least(least: int, **counts: int) -> None:
    for name, value in counts.items():
        if type(value) is not int or value < least:
            raise InputError(
                f"topology parameter {name}",
                f"{value!r} is not a whole number of at least {least}",
                f"give {least} or more",
            )


def _require_even(**counts: int) -> None:
    _require_at_least(2, **counts)
    for name, value in counts.items():
        if value % 2:
            raise InputError(
                f"topology parameter {name}", f"{value} is odd", f"give {value - 1} or {value + 1}"
            )


def back_to_back(
    *,
    rate: ByTier = "4xFDR",
    delay: ByTier = "50 ns",
    lanes: int = 1,
    routing: str = "shortest_path",
) -> Fabric:
    """Two hosts and one cable."""
    draft = _Draft("back_to_back", rate, delay, tiers=1)
    draft.link(*draft.hosts(2))
    return draft.fabric(lanes, routing)


def one_switch(
    hosts: int,
    *,
    rate: ByTier = "4xFDR",
    delay: ByTier = "50 ns",
    lanes: int = 1,
    routing: str = "shortest_path",
) -> Fabric:
    """All hosts on one switch."""
    _require_at_least(1, hosts=hosts)
    draft = _Draft("one_switch", rate, delay, tiers=1)
    draft.link_in_turn(draft.hosts(hosts), draft.switches("switch", 1))
    return draft.fabric(lanes, routing)


def two_hops(
    upstream_hosts: int,
    downstream_hosts: int,
    *,
    rate: ByTier = "4xFDR",
    delay: ByTier = "50 ns",
    lanes: int = 1,
    routing: str = "shortest_path",
) -> Fabric:
    """Two switches and one cable between them: switch0 upstream, switch1 downstream."""
    _require_at_least(1, upstream_hosts=upstream_hosts, downstream_hosts=downstream_hosts)
    draft = _Draft("two_hops", rate, delay, tiers=2)
    hosts = draft.hosts(upstream_hosts + downstream_hosts)
    upstream, downstream = draft.switches("switch", 2)
    draft.link_in_turn(hosts[:upstream_hosts], [upstream])
    draft.link_in_turn(hosts[upstream_hosts:], [downstream])
    draft.link(upstream, downstream, 1)
    return draft.fabric(lanes, routing)


def leaf_spine(
    leaves: int,
    spines: int,
    hosts_per_leaf: int,
    links_per_pair: int = 1,
    *,
    rate: ByTier = "4xFDR",
    delay: ByTier = "50 ns",
    lanes: int = 1,
    routing: str = "destination_modulo",
) -> Fabric:
    """Two levels: every leaf linked to every spine by `links_per_pair` cables."""
    _require_at_least(
        1,
        leaves=leaves,
        spines=spines,
        hosts_per_leaf=hosts_per_leaf,
        links_per_pair=links_per_pair,
    )
    draft = _Draft("leaf_spine", rate, delay, tiers=2)
    hosts = draft.hosts(leaves * hosts_per_leaf)
    lower, upper = draft.switches("leaf", leaves), draft.switches("spine", spines)
    draft.link_in_turn(hosts, lower)
    for leaf in lower:
        for spine in upper:
            for _ in range(links_per_pair):
                draft.link(leaf, spine, 1)
    return draft.fabric(lanes, routing)


def leaf_spine3(
    pods: int,
    leaves_per_pod: int,
    tors_per_pod: int,
    spines: int,
    hosts_per_tor: int,
    uplinks_per_leaf: int,
    *,
    rate: ByTier = "4xFDR",
    delay: ByTier = "50 ns",
    lanes: int = 1,
    routing: str = "destination_modulo",
) -> Fabric:
    """Three levels: in a pod every ToR is linked to every leaf; uplinks are spread over spines."""
    _require_at_least(1, pods=pods, leaves_per_pod=leaves_per_pod, tors_per_pod=tors_per_pod)
    _require_at_least(
        1, spines=spines, hosts_per_tor=hosts_per_tor, uplinks_per_leaf=uplinks_per_leaf
    )
    draft = _Draft("leaf_spine3", rate, delay, tiers=3)
    hosts = draft.hosts(pods * tors_per_pod * hosts_per_tor)
    tors = draft.switches("tor", pods * tors_per_pod)
    leaves = draft.switches("leaf", pods * leaves_per_pod)
    tops = draft.switches("spine", spines)
    draft.link_in_turn(hosts, tors)
    for i, tor in enumerate(tors):
        pod = i // tors_per_pod
        for leaf in leaves[pod * leaves_per_pod : (pod + 1) * leaves_per_pod]:
            draft.link(tor, leaf, 1)
    for i, leaf in enumerate(leaves):
        for k in range(uplinks_per_leaf):
            draft.link(leaf, tops[(i * uplinks_per_leaf + k) % spines], 2)
    return draft.fabric(lanes, routing)


def papers_1944(
    *,
    rate: ByTier = "56 Gb/s",
    delay: ByTier = "50 ns",
    lanes: int = 1,
    routing: str = "destination_modulo",
) -> Fabric:
    """The papers' fabric: 54 spines, 102 leaves, 108 ToRs with 18 servers each.

    The papers give the counts; 6 pods of 17 leaves × 18 ToRs is the wiring of 36-port
    switches that meets them.
    """
    return leaf_spine3(6, 17, 18, 54, 18, 18, rate=rate, delay=delay, lanes=lanes, routing=routing)


def fat_tree(
    k: int,
    *,
    rate: ByTier = "4xFDR",
    delay: ByTier = "50 ns",
    lanes: int = 1,
    routing: str = "destination_modulo",
) -> Fabric:
    """The three-level Clos of k-port switches: k pods, k³/4 hosts, 5k²/4 switches."""
    _require_even(k=k)
    half = k // 2
    draft = _Draft("fat_tree", rate, delay, tiers=3)
    hosts = draft.hosts(k * half * half)
    edges, aggs = draft.switches("edge", k * half), draft.switches("agg", k * half)
    cores = draft.switches("core", half * half)
    draft.link_in_turn(hosts, edges)
    for i, edge in enumerate(edges):
        pod = i // half
        for agg in aggs[pod * half : (pod + 1) * half]:
            draft.link(edge, agg, 1)
    for i, agg in enumerate(aggs):
        for core in cores[i % half * half : (i % half + 1) * half]:
            draft.link(agg, core, 2)
    return draft.fabric(lanes, routing)


def vl2(
    d_a: int,
    d_i: int,
    hosts_per_tor: int,
    *,
    rate: ByTier = "4xFDR",
    delay: ByTier = "50 ns",
    lanes: int = 1,
    routing: str = "ecmp",
) -> Fabric:
    """VL2: d_a·d_i/4 ToRs with two uplinks, d_i aggregation switches, d_a/2 intermediates."""
    _require_even(d_a=d_a, d_i=d_i)
    _require_at_least(1, hosts_per_tor=hosts_per_tor)
    draft = _Draft("vl2", rate, delay, tiers=3)
    hosts = draft.hosts(d_a * d_i // 4 * hosts_per_tor)
    tors, aggs = draft.switches("tor", d_a * d_i // 4), draft.switches("agg", d_i)
    intermediates = draft.switches("int", d_a // 2)
    draft.link_in_turn(hosts, tors)
    for i, tor in enumerate(tors):
        pair = i // (d_a // 2)
        draft.link(tor, aggs[2 * pair], 1)
        draft.link(tor, aggs[2 * pair + 1], 1)
    for agg in aggs:
        for intermediate in intermediates:
            draft.link(agg, intermediate, 2)
    return draft.fabric(lanes, routing)


def dragonfly(
    p: int,
    a: int,
    h: int,
    groups: int | None = None,
    *,
    rate: ByTier = "4xFDR",
    delay: ByTier = "50 ns",
    lanes: int = 1,
    routing: str = "shortest_path",
) -> Fabric:
    """Groups of `a` fully meshed routers with `p` hosts and `h` global links each.

    Without `groups` the largest, a·h + 1, with one cable between each two groups; with fewer,
    each two groups share floor(a·h / (groups - 1)) cables. Shortest paths on one lane can
    deadlock: see `weft.fabric.find_cycle`.
    """
    _require_at_least(1, p=p, a=a, h=h)
    count = a * h + 1 if groups is None else groups
    _require_at_least(1, groups=count)
    if count > a * h + 1:
        raise InputError(
            "topology parameter groups",
            f"{count} is above a·h + 1 = {a * h + 1}",
            "lower groups, or raise a or h",
        )
    draft = _Draft("dragonfly", rate, delay, tiers=3)
    hosts = draft.hosts(p * a * count)
    routers = draft.switches("router", a * count)
    draft.link_in_turn(hosts, routers)
    for group in range(count):
        _mesh(draft, routers[group * a : (group + 1) * a])
    for router, peer in _global_links(a, h, count):
        draft.link(routers[router], routers[peer], 2)
    return draft.fabric(lanes, routing)


def _mesh(draft: _Draft, routers: Sequence[int]) -> None:
    for i, router in enumerate(routers):
        for other in routers[i + 1 :]:
            draft.link(router, other, 1)


def _global_links(a: int, h: int, groups: int) -> list[tuple[int, int]]:
    """Router pairs: global port j of group g leads to group g + 1 + (j mod (groups - 1))."""
    peers = groups - 1
    pairs = []
    for bundle in range(a * h // peers if peers else 0):
        for group in range(groups):
            for step in range(peers):
                peer = (group + 1 + step) % groups
                if group < peer:
                    port, peer_port = bundle * peers + step, bundle * peers + peers - 1 - step
                    pairs.append((group * a + port // h, peer * a + peer_port // h))
    return pairs


TOPOLOGIES: dict[str, Callable[..., Fabric]] = {
    builder.__name__: builder
    for builder in (
        back_to_back,
        one_switch,
        two_hops,
        leaf_spine,
        leaf_spine3,
        papers_1944,
        fat_tree,
        vl2,
        dragonfly,
    )
}
