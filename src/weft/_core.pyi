"""Types of the C++ core."""

import enum
from collections.abc import Iterable, Sequence
from typing import NoReturn, overload

import numpy as np
from numpy.typing import NDArray

# --- bindings/bind_histogram.cpp ---

class Histogram:
    """Log-bucket histogram of 64-bit integers; one writer at a time.

    Count, sum, min and max are exact; quantiles are within 0.1 %, exact below 1024.
    `quantile_interval` has None at an end that the samples are too few to bound.
    `buckets` are (lower, upper, count), both edges inclusive, in ascending order.
    min, max, mean and quantiles of an empty histogram raise ValueError.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None: ...
    def record(self, value: int, n: int = 1) -> None: ...
    def record_many(self, values: NDArray[np.int64]) -> None: ...
    def merge(self, other: Histogram) -> None: ...
    def quantile(self, q: float) -> int: ...
    def quantile_interval(
        self, q: float, confidence: float = 0.95
    ) -> tuple[int | None, int | None]: ...
    @property
    def count(self) -> int: ...
    @property
    def min(self) -> int: ...
    @property
    def max(self) -> int: ...
    @property
    def mean(self) -> float: ...
    def buckets(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]: ...
    def to_sparse(self) -> tuple[NDArray[np.int32], NDArray[np.uint64], int, int, int]: ...
    @staticmethod
    def from_sparse(
        keys: NDArray[np.int32], counts: NDArray[np.uint64], min: int, max: int, sum: int
    ) -> Histogram: ...
    def __eq__(self, other: object) -> bool: ...

# --- bindings/bind_packet.cpp ---

class Transport(enum.Enum):
    RC = 0
    UC = 1
    UD = 2

class Op(enum.Enum):
    SEND = 0
    WRITE = 1
    WRITE_WITH_IMM = 2
    READ = 3

class Order(enum.Enum):
    FCFS = 0
    FCFS_AGE = 1
    ROUND_ROBIN = 2

class Pattern(enum.Enum):
    STREAM = 0
    PROBE = 1
    PACED = 2
    SCHEDULE = 3
    TRIGGERED = 4
    WORKLOAD = 5

class Estimator(enum.Enum):
    COMPLETION = 0
    PING_PONG = 1
    RPERF_WIRE_FIRST = 2
    RPERF_LOOPBACK_FIRST = 3
    RPERF_ALTERNATING = 4

class Status(enum.Enum):
    RUNNING = 0
    TIME_UP = 1
    FINISHED = 2
    DEADLOCK = 3

class BrokenInvariant(Exception): ...

class ArbTables:
    def __init__(
        self, high: Sequence[Sequence[int]], low: Sequence[Sequence[int]], high_limit: int
    ) -> None: ...
    strict: bool

class CongestionControl:
    enabled: bool
    threshold_bytes: int
    marking_rate: int
    increase: int
    limit: int
    timer_ps: int
    step: float

class SwitchSpec:
    latency_ps: int
    jitter_mean_ps: int
    order: Order
    virtual_output_queues: bool
    crossbar_speedup: int
    congestion: CongestionControl

class CreditSpec:
    switch_buffer_bytes: int
    host_buffer_bytes: int
    interval_ps: int
    delay_ps: int

class GrantSpec:
    enabled: bool
    ahead_bytes: int
    messages: int
    cutoffs_bytes: Sequence[int]
    by_left: bool
    priorities: int

class AdapterSpec:
    grants: GrantSpec
    post_ps: int
    hiccup_mean_ps: int
    hiccup_probability: float
    poll_ps: int
    poll_jitter_mean_ps: int
    pcie_read_ps: int
    pcie_write_ps: int
    pcie_read_bps: float
    pcie_write_bps: float
    tx_ps: int
    rx_ps: int
    write_ack_ps: int
    doorbell_gap_ps: int
    message_gap_ps: int
    packet_gap_ps: int
    inline_bytes: int
    loopback_bps: float

class NetworkSpec:
    is_switch: Sequence[int]
    lanes: int
    sl2vl: Sequence[int]
    arbitration: ArbTables
    switches: SwitchSpec
    credits: CreditSpec
    adapter: AdapterSpec
    def add_cable(
        self, a: int, a_port: int, b: int, b_port: int, rate_bps: float, delay_ps: int, /
    ) -> None: ...
    def set_routes(
        self, next_hop: NDArray[np.uint16], start: Sequence[int], ports: Sequence[int], /
    ) -> None: ...
    def override_sl2vl(
        self, node: int, in_port: int, out_port: int, sl2vl: Sequence[int], /
    ) -> None: ...
    def override_arbitration(self, node: int, port: int, tables: ArbTables, /) -> None: ...
    def override_buffer(self, node: int, port: int, vl: int, bytes: int, /) -> None: ...

class FlowSpec:
    def __init__(self, other: FlowSpec = ..., /) -> None: ...
    src: int
    dst: int
    pattern: Pattern
    estimator: Estimator
    transport: Transport
    op: Op
    size_bytes: int
    mtu: int
    sl: int
    window: int
    batch: int
    ack_every: int
    ack_bytes: int
    rate_bps: float
    messages: int
    start_ps: int
    stop_ps: int
    think_ps: int
    interval_ps: int
    poisson: bool
    allow_inline: bool
    group: int
    traffic: int
    stops_with: int
    triggers: int
    initial_triggers: int
    schedule: Sequence[tuple[int, int]]  # (ps, bytes)

class FlowList(Sequence[FlowSpec]):
    """Flows held by the core. An item shares its memory; arrays are copies."""

    def __init__(self, flows: Iterable[FlowSpec] = ..., /) -> None: ...
    @overload
    def __getitem__(self, number: int, /) -> FlowSpec: ...
    @overload
    def __getitem__(self, numbers: slice, /) -> FlowList: ...
    def __len__(self) -> int: ...
    def append(self, flow: FlowSpec, /) -> None: ...
    def add(
        self, like: FlowSpec, sources: NDArray[np.int32], targets: NDArray[np.int32]
    ) -> None: ...
    def extend_part(self, part: FlowList, groups: Sequence[int], traffic: int) -> None: ...
    @property
    def sources(self) -> NDArray[np.int64]: ...
    @property
    def targets(self) -> NDArray[np.int64]: ...
    @property
    def service_levels(self) -> NDArray[np.int64]: ...
    @property
    def messages(self) -> NDArray[np.int64]: ...
    @property
    def starts_ps(self) -> NDArray[np.int64]: ...
    @property
    def stops_with(self) -> NDArray[np.int64]: ...
    @property
    def largest_packet_bytes(self) -> int: ...

class RunSpec:
    seed: int
    duration_ps: int
    warmup_ps: int
    sample_interval_ps: int
    groups: int
    first_flow: int
    stop_when_done: bool
    check_invariants: bool
    skip_steady: bool
    threads: int
    partitioned_links: int

class LaneCounters:
    xmit_bytes: int
    xmit_packets: int
    rcv_bytes: int
    rcv_packets: int
    xmit_wait_ps: int
    marked: int
    peak_blocks: int
    peak_backlog_bytes: int

class FlowResult:
    posted: int
    completed: int
    delivered: int
    bytes: int
    messages: int
    first_delivery_ps: int
    last_delivery_ps: int
    finished_ps: int
    stop_ps: int

class GroupResult:
    rtt: Histogram
    one_way: Histogram
    switch_time: Histogram

class BlockedLane:
    link: int
    vl: int
    out_link: int
    out_vl: int
    waited_ps: int
    no_credit: bool

class WorkloadSpec:
    """A workload's ranks on hosts; `flow` is by operation, 2**32 - 1 where it needs none."""

    def __init__(
        self,
        *,
        operations: OperationArrays,
        host: NDArray[np.uint32],
        traffic: NDArray[np.uint32],
        begin_ps: Sequence[int],
        flow: NDArray[np.uint32],
    ) -> None: ...

def measure_barrier_ns(threads: int, meetings: int) -> float: ...

class Simulation:
    """A fabric and its flows; a `FlowList` is taken over and left empty."""

    def __init__(
        self,
        network: NetworkSpec,
        flows: Iterable[FlowSpec],
        run: RunSpec,
        workload: WorkloadSpec | None = None,
    ) -> None: ...
    def rank_finished_ps(self, rank: int) -> int: ...
    def operations_ended_ps(self) -> NDArray[np.int64]: ...
    def run(self, max_events: int) -> Status: ...
    def set_arbitration(self, node: int, port: int, tables: ArbTables) -> None: ...
    def set_rate(self, flow: int, rate_bps: float) -> None: ...
    @property
    def now_ps(self) -> int: ...
    @property
    def events(self) -> int: ...
    @property
    def skipped_ps(self) -> int: ...
    @property
    def packet_hops(self) -> int: ...
    @property
    def packets_alive(self) -> int: ...
    @property
    def partitions(self) -> int: ...
    @property
    def lookahead_ps(self) -> int: ...
    @property
    def threads(self) -> int: ...
    def keep_accounts(self) -> None: ...
    def window_events(self) -> NDArray[np.uint32]: ...
    def group(self, number: int, /) -> GroupResult: ...
    def flow(self, number: int, /) -> FlowResult: ...
    @property
    def flow_deliveries(self) -> NDArray[np.int64]: ...
    @property
    def flow_bytes(self) -> NDArray[np.int64]: ...
    @property
    def flow_messages(self) -> NDArray[np.int64]: ...
    @property
    def flow_last_deliveries_ps(self) -> NDArray[np.int64]: ...
    @property
    def flow_ends_ps(self) -> NDArray[np.int64]: ...
    @property
    def flow_stops_ps(self) -> NDArray[np.int64]: ...
    @property
    def links(self) -> int: ...
    def link(self, number: int, /) -> tuple[int, int, int]: ...
    def counters(self, link: int, vl: int, /) -> LaneCounters: ...
    def link_table(self) -> NDArray[np.int64]:
        """[link, (node, port, peer)]."""

    def counter_table(self) -> NDArray[np.int64]:
        """[link * lanes + lane, (the numbers of LaneCounters)]."""

    def head_of_line_share(self) -> float: ...
    def blocked(self, limit_ps: int) -> list[BlockedLane]: ...
    def deadlock_cycle(self) -> list[BlockedLane]: ...
    @property
    def sample_times_ps(self) -> list[int]: ...
    def samples(self) -> NDArray[np.int32]: ...

# --- bindings/bind_fabric.cpp: tables of routes; the last array of a filler is written ---

def group_ports(usable: NDArray[np.uint64], group: NDArray[np.int32]) -> list[list[int]]: ...
def spread_destinations(
    group: NDArray[np.int32],
    groups: Sequence[Sequence[int]],
    up: NDArray[np.uint8],
    divisor: NDArray[np.int64],
    target_of: NDArray[np.int32],
    ports: NDArray[np.int16],
) -> None: ...
def number_ports(ports: NDArray[np.int16]) -> list[int]: ...
def find_lost_pair(
    next_hop: NDArray[np.uint16],
    group_start: Sequence[int],
    group_ports: Sequence[int],
    peer: NDArray[np.int32],
    first_switch: NDArray[np.int32],
    destination: NDArray[np.int32],
    order: NDArray[np.int64],
) -> int: ...

# --- bindings/bind_clock.cpp ---

class Clock:
    """The processor's counter, calibrated against CLOCK_MONOTONIC_RAW; core/base/clock.hpp."""

    @staticmethod
    def calibrate(seconds: float = 0.1) -> Clock: ...
    @staticmethod
    def shared() -> Clock: ...
    @staticmethod
    def source() -> str: ...
    @staticmethod
    def invariant() -> tuple[bool, str]:
        """Whether the counter runs at one rate, and how that is known."""

    @property
    def hz(self) -> float: ...
    @property
    def error_ppm(self) -> float: ...
    @property
    def step_ps(self) -> int: ...
    @property
    def read_ps(self) -> int: ...

class Hiccups:
    """Gaps (ps) in which a spinning thread did not run."""

    @property
    def gaps(self) -> Histogram: ...
    @property
    def elapsed_ns(self) -> int: ...
    @property
    def readings(self) -> int: ...

def hiccups(seconds: float, cpu: int = -1, threshold_ns: int = 1000) -> Hiccups: ...
def core_distance(cpu_a: int, cpu_b: int, rounds: int = 20_000, seconds: float = 1.0) -> Histogram:
    """Half round trips (ps) of a cache line between two CPUs; ends with the time if need be."""

def huge_pages_of(bytes: int, pages: str = "auto", node: int = -1) -> str:
    """The pages that a message buffer of this size gets now: "2M", "thp" or "4K"."""

# --- bindings/bind_transport.cpp ---

class DelayConfig:
    """What the delay transport injects; core/transport/endpoint.hpp says what each means."""

    def __init__(self) -> None: ...
    wire: str
    loopback: str
    host_post: str
    host_complete: str
    remote_host: str
    remote_memory: str
    adapter_ns: int
    receive_ns: int
    rate_gbps: float
    loss: float
    stall_every_ns: int
    stall_ns: int
    seed: int
    peer: str
    samples: int

class EndpointConfig:
    """How to open an endpoint; core/transport/endpoint.hpp says what each field means."""

    def __init__(self) -> None: ...
    transport: str
    device: str
    endpoint: str
    address: str
    server: bool
    send_bytes: int
    receive_bytes: int
    depth: int
    receive_depth: int
    remote_bytes: int
    one_buffer: bool
    events: bool
    inline_bytes: int
    inline_by_device: bool
    offset: int
    pages: str
    memory: str
    contents: bool
    node: int
    port: int
    gid_index: int
    partition: int
    path_mtu: int
    posting: str
    strict_ordering: bool
    separate_contexts: bool
    queue_members: int
    service_level: int
    traffic_class: int
    class_is_optional: bool
    priority: int
    device_timestamps: bool
    delivery: bool
    congestion: str
    nagle: bool
    busy_poll_us: int
    delay: DelayConfig

class Endpoint:
    """One end of a connection. Errors are weft.errors.InputError."""

    @staticmethod
    def open(config: EndpointConfig) -> Endpoint: ...
    def address(self) -> bytes: ...
    def connect(self, peer: bytes, timeout_ms: int) -> None: ...
    def describe(self) -> dict[str, str]: ...
    @property
    def is_reliable(self) -> bool: ...
    @property
    def is_marked(self) -> bool: ...
    def close(self) -> None: ...

class Availability:
    """Whether a transport, device or provider can be used here, or why not."""

    @property
    def transport(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def available(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    @property
    def remedy(self) -> str: ...
    @property
    def endpoints(self) -> list[str]: ...
    @property
    def operations(self) -> list[str]: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def facts(self) -> dict[str, str]: ...

def chosen_device(config: EndpointConfig) -> str: ...
def availability(transport: str = "") -> list[Availability]:
    """Of one transport, or of all: those of libraries take a moment."""

# --- bindings/bind_delay.cpp ---

class DelayTruth:
    """What a delay endpoint has injected so far, in ps; core/transport/delay/endpoint.hpp."""

    @property
    def messages(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def wire_rtt(self) -> Histogram: ...
    @property
    def completion(self) -> Histogram: ...
    @property
    def echo(self) -> Histogram: ...
    @property
    def completion_late(self) -> Histogram: ...
    @property
    def arrival_late(self) -> Histogram: ...
    @property
    def wire_rtt_samples(self) -> NDArray[np.int64]: ...
    @property
    def completion_samples(self) -> NDArray[np.int64]: ...
    @property
    def echo_samples(self) -> NDArray[np.int64]: ...
    @property
    def completion_late_samples(self) -> NDArray[np.int64]: ...
    @property
    def completion_away_samples(self) -> NDArray[np.int64]: ...
    @property
    def arrival_late_samples(self) -> NDArray[np.int64]: ...
    @property
    def arrival_away_samples(self) -> NDArray[np.int64]: ...
    @property
    def turnaround_samples(self) -> NDArray[np.int64]: ...

def delay_truth(endpoint: Endpoint) -> DelayTruth: ...
def timing_cost(messages: int) -> tuple[float, float]:
    """ns per message of a null loop with clock and histogram, and of the same loop without."""

class PlainExchange:
    """Messages of 64 B by a transport's own calls; a sleep ends `awake_ns` before a message."""

    def __init__(
        self,
        *,
        first: int,
        messages: int,
        spins: bool,
        idle_ns: int,
        awake_ns: int,
        timeout_ns: int,
    ) -> None: ...

def exchange_plainly(socket: int, exchange: PlainExchange) -> list[int]:
    """Round trips over a connected socket by send and recv alone, in ns."""

class PlainFabric:
    """A reliable datagram endpoint of a libfabric provider, used by libfabric's calls alone."""

    def __init__(self, provider: str, address: str, *, spins: bool) -> None: ...
    def name(self) -> bytes: ...
    def exchange(self, peer: bytes, exchange: PlainExchange) -> list[int]:
        """Round trips in ns, after one that opens the connection."""
    def echo(self) -> NoReturn:
        """Sends back what comes, for as long as the process lives."""

# --- bindings/bind_probe.cpp: the timed loops of core/probe/loops.hpp, all without the GIL ---

class StopFlag:
    """Ends a loop from another thread; `done` is its progress in messages."""

    def __init__(self) -> None: ...
    def set(self) -> None: ...
    def finish_at(self, messages: int) -> None: ...
    @property
    def is_set(self) -> bool: ...
    @property
    def done(self) -> int: ...

class LoopSpec:
    """When a loop ends and what its messages are; core/probe/run.hpp."""

    def __init__(self) -> None: ...
    count: int
    duration_ns: int
    warmup: int
    bytes: int
    op: str
    block: bool
    validate: bool
    cpu: int
    samples: int
    loss_timeout_ns: int
    seed: int

class Counts:
    @property
    def sent(self) -> int: ...
    @property
    def received(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def reordered(self) -> int: ...
    @property
    def duplicates(self) -> int: ...
    @property
    def corrupted(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def elapsed_ns(self) -> int: ...
    @property
    def user_ns(self) -> int: ...
    @property
    def system_ns(self) -> int: ...
    @property
    def stopped(self) -> bool: ...
    @property
    def error(self) -> str: ...

class LatencyResult:
    @property
    def counts(self) -> Counts: ...
    @property
    def latency(self) -> Histogram: ...
    @property
    def samples(self) -> NDArray[np.int64]: ...

class PostPollResult:
    @property
    def counts(self) -> Counts: ...
    @property
    def rtt(self) -> Histogram: ...
    @property
    def post_poll(self) -> Histogram: ...
    @property
    def loopback(self) -> Histogram: ...
    @property
    def device_rtt(self) -> Histogram: ...
    @property
    def negative(self) -> int: ...
    @property
    def samples(self) -> NDArray[np.int64]: ...
    @property
    def loopback_samples(self) -> NDArray[np.int64]: ...

class PacedResult:
    @property
    def counts(self) -> Counts: ...
    @property
    def latency(self) -> Histogram: ...
    @property
    def service(self) -> Histogram: ...
    @property
    def lateness(self) -> Histogram: ...
    @property
    def samples(self) -> NDArray[np.int64]: ...
    @property
    def intended_ns(self) -> NDArray[np.int64]: ...
    @property
    def late_ps(self) -> NDArray[np.int64]: ...

def write_ping_pong(endpoint: Endpoint, spec: LoopSpec, stop: StopFlag) -> LatencyResult: ...
def write_echo(endpoint: Endpoint, spec: LoopSpec, stop: StopFlag) -> Counts: ...
def ping_pong(endpoint: Endpoint, spec: LoopSpec, stop: StopFlag) -> LatencyResult: ...
def echo(endpoint: Endpoint, spec: LoopSpec, stop: StopFlag) -> Counts: ...
def post_poll(
    wire: Endpoint, loopback: Endpoint, spec: LoopSpec, order: str, device_hz: float, stop: StopFlag
) -> PostPollResult:
    """RPerf; order is "wire-first", "loopback-first" or "alternating"."""

def complete(endpoint: Endpoint, spec: LoopSpec, stop: StopFlag) -> LatencyResult: ...
def stream(
    endpoints: Sequence[Endpoint],
    spec: LoopSpec,
    stop: StopFlag,
    *,
    window: int = 1,
    post_list: int = 1,
    signal_every: int = 1,
    rate: float = 0.0,
) -> Counts: ...
def sink(endpoints: Sequence[Endpoint], spec: LoopSpec, stop: StopFlag) -> Counts: ...
def duplex(
    endpoints: Sequence[Endpoint],
    spec: LoopSpec,
    stop: StopFlag,
    *,
    window: int = 1,
    post_list: int = 1,
    signal_every: int = 1,
    rate: float = 0.0,
) -> tuple[Counts, Counts]:
    """What was sent and what was received."""

def serve_window(endpoints: Sequence[Endpoint], spec: LoopSpec, stop: StopFlag) -> Counts: ...
def paced(
    endpoint: Endpoint,
    spec: LoopSpec,
    stop: StopFlag,
    *,
    rate: float,
    poisson: bool = False,
    window: int = 64,
) -> PacedResult: ...
def transfer_send(
    endpoint: Endpoint,
    spec: LoopSpec,
    stop: StopFlag,
    *,
    outstanding: int,
    signal_every: int,
    remote_slots: int = 1,
) -> Counts: ...
def transfer_receive(
    endpoint: Endpoint,
    spec: LoopSpec,
    stop: StopFlag,
    *,
    outstanding: int,
    signal_every: int,
    remote_slots: int = 1,
) -> Counts: ...

# --- bindings/bind_allocate.cpp ---

class Allocator:
    """Curves of applications, and a solver over ports; `weft.control.policy.allocate` names all.

    Kind 0: numbers c0, c1, ...; kind 1: t0, c0, t1, c1, .... `solve` fills weights (per entry of
    applications), objective, gap and multiplier (per port).
    """

    def __init__(
        self,
        kinds: NDArray[np.uint8],
        floors: NDArray[np.float64],
        offsets: NDArray[np.int64],
        numbers: NDArray[np.float64],
    ) -> None: ...
    def solve(
        self,
        offsets: NDArray[np.int64],
        applications: NDArray[np.int32],
        units: NDArray[np.int64],
        budget: NDArray[np.int64],
        weights: NDArray[np.int64],
        objective: NDArray[np.float64],
        gap: NDArray[np.float64],
        multiplier: NDArray[np.float64],
        tolerance: float = ...,
        nodes: int = ...,
        programme_steps: float = ...,
        threads: int = ...,
    ) -> None: ...

# --- bindings/bind_workload.cpp ---

class OperationArrays:
    """Operations of a workload, rank by rank; `dependency` in CSR form.

    `kind` is 0 send, 1 receive, 2 compute; `amount` bytes of a message or ps of a computation.
    `find_unmatched` gives (source, destination, tag, sends, receives).
    """

    def __init__(
        self,
        *,
        ranks: int,
        kind: NDArray[np.uint8],
        rank: NDArray[np.uint32],
        peer: NDArray[np.uint32],
        tag: NDArray[np.uint32],
        amount: NDArray[np.int64],
        cpu: NDArray[np.uint8],
        dependency_start: NDArray[np.uint32],
        dependency: NDArray[np.uint32],
        on_start: NDArray[np.uint8],
    ) -> None: ...
    @property
    def size(self) -> int: ...
    def find_cycle(self) -> int | None: ...
    def find_unmatched(self) -> tuple[int, int, int, int, int] | None: ...

class LogGop:
    """Parameters of the LogGOP network."""

    L_ps: int
    o_ps: int
    g_ps: int
    G_ps_per_byte: float
    O_ps_per_byte: float
    S_bytes: int

    def __init__(self) -> None: ...

def run_loggop(
    operations: OperationArrays, parameters: LogGop
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When each rank is done and when each operation ended (2**63 - 1: never), in ps."""

# --- bindings/bind_flow.cpp ---

class MaxMin:
    """Weighted max-min fair rates; a port's queues are (weight, priority); 0 goes first.

    A path lists (port, queue of the port). `solve` gives the flows that have another rate.
    """

    def __init__(self) -> None: ...
    def add_port(self, capacity: float, queues: Sequence[tuple[float, int]] = ...) -> int: ...
    def add_flow(
        self, path: Sequence[tuple[int, int]], weight: float = 1.0, cap: float = ...
    ) -> int: ...
    def remove_flow(self, flow: int) -> None: ...
    def set_queues(self, port: int, queues: Sequence[tuple[float, int]]) -> None:
        """Other weights and priorities, of as many queues."""
    def set_queue(self, flow: int, hop: int, queue: int) -> None:
        """Move a flow to another queue of the port of one of its hops."""
    def set_tolerance(self, tolerance: float) -> None:
        """The relative change of a share that is not passed on; 0: rounding alone."""
    def solve(self) -> list[int]: ...
    def rate(self, flow: int) -> float: ...
    @property
    def port_solutions(self) -> int: ...
    @property
    def sweeps(self) -> int: ...

class Transfers:
    """Transfers of bytes at max-min fair rates, and when each of them ends."""

    def __init__(self) -> None: ...
    def add_port(self, rate_bps: float, queues: Sequence[tuple[float, int]] = ...) -> int: ...
    def start(
        self,
        path: Sequence[tuple[int, int]],
        size_bytes: float,
        weight: float = 1.0,
        cap_bps: float = ...,
    ) -> int: ...
    def stop(self, transfer: int) -> None: ...
    def set_step(self, step_ps: int) -> None:
        """Solve changes together at multiples of this; 0: at once."""
    def set_tolerance(self, tolerance: float) -> None: ...
    def set_queues(self, port: int, queues: Sequence[tuple[float, int]]) -> None: ...
    def set_queue(self, transfer: int, hop: int, queue: int) -> None: ...
    def set_priority(self, transfer: int, priority: int) -> None: ...
    def serve_by_queues(self) -> None: ...
    def serve_by_priority(self) -> None: ...
    def serve_by_bytes_left(self, cutoffs: Sequence[float] = ...) -> None: ...
    def next_end_ps(self) -> int:
        """When the next transfer is done, or rates are solved before."""
    def advance(self, time_ps: int) -> list[int]:
        """Transfers that are done at this time, which is not after the next end."""
    def rate_bps(self, transfer: int) -> float: ...
    def sent_bytes(self, transfer: int) -> float: ...
    def carried_bytes(self, port: int, queue: int = 0) -> float:
        """Sent over this queue by transfers that have ended."""
    @property
    def now_ps(self) -> int: ...
    @property
    def active(self) -> int: ...
    @property
    def port_solutions(self) -> int: ...

class FlowSimulation:
    """A scenario's streams and workloads at flow level; results as those of `Simulation`."""

    def __init__(
        self,
        network: NetworkSpec,
        flows: FlowList,
        run: RunSpec,
        workload: WorkloadSpec | None = None,
        *,
        step_ps: int = 0,
        tolerance: float = 0.0,
        queues: int = 0,
        watch_stages: bool = False,
    ) -> None:
        """With `queues`, ports have so many instead of lanes, and `run` returns as jobs change."""
    def run(self, max_events: int) -> Status: ...
    def take_change(self) -> bool:
        """Whether jobs have changed since the last call."""
    @property
    def jobs(self) -> int: ...
    @property
    def ports(self) -> int: ...
    @property
    def present(self) -> list[int]: ...
    @property
    def sending(self) -> list[int]: ...
    def jobs_at_ports(self) -> NDArray[np.uint8]: ...
    def bytes_left(self) -> NDArray[np.float64]: ...
    def program(
        self,
        ports: NDArray[np.uint32],
        weights: NDArray[np.float64],
        priorities: NDArray[np.uint32],
        queue_of_job: NDArray[np.uint32],
    ) -> None: ...
    def order_jobs(self, priorities: Sequence[int]) -> None: ...
    def order_by_bytes_left(self, cutoffs: Sequence[float]) -> None: ...
    def order_by_queues(self) -> None: ...
    @property
    def now_ps(self) -> int: ...
    @property
    def events(self) -> int: ...
    def flow(self, number: int, /) -> FlowResult: ...
    @property
    def flow_deliveries(self) -> NDArray[np.int64]: ...
    @property
    def flow_bytes(self) -> NDArray[np.int64]: ...
    @property
    def flow_messages(self) -> NDArray[np.int64]: ...
    @property
    def flow_last_deliveries_ps(self) -> NDArray[np.int64]: ...
    @property
    def flow_ends_ps(self) -> NDArray[np.int64]: ...
    @property
    def flow_stops_ps(self) -> NDArray[np.int64]: ...
    def carried_bytes(self) -> list[float]:
        """On the wire, by direction of each link (a to b, then b to a) and lane; no ACKs."""
    def rank_finished_ps(self, rank: int) -> int: ...
    def operations_ended_ps(self) -> NDArray[np.int64]: ...

# --- bindings/bind_shuffles.cpp ---

class Shuffles:
    """Jobs that shuffle over ports with lanes, at fair rates that are solved in batches.

    A job: (stages, loops, start in s, its first flow, its flows), a stage: (computation in s, bytes
    of each flow before and after it). Rates are bytes per second.
    """

    def __init__(
        self,
        capacity: NDArray[np.float64],
        path_start: NDArray[np.uint64],
        path: NDArray[np.uint32],
        jobs: Sequence[tuple[Sequence[tuple[float, float, float]], int, float, int, int]],
        batch: float = 0.0,
        tolerance: float = 1e-6,
    ) -> None: ...
    def program(
        self,
        lanes: int,
        lane: NDArray[np.uint8],
        weight: NDArray[np.float64],
        strict: bool = False,
        lending: bool = True,
    ) -> None:
        """`lane[job * ports + port]`, `weight[port * lanes + lane]`."""
    def order_flows(self, cutoffs_bytes: Sequence[float]) -> None:
        """Strict lanes by the bytes that a flow has left."""
    def run(self, at_sends: bool = False) -> bool:
        """Until a job begins or finishes, or begins or ceases to send; False: all finished."""
    @property
    def now_s(self) -> float: ...
    @property
    def finished_s(self) -> NDArray[np.float64]:
        """By job; infinite: not yet."""
    @property
    def sending(self) -> NDArray[np.uint8]: ...
    @property
    def present(self) -> NDArray[np.uint8]: ...
    def left_at_ports(self) -> NDArray[np.float64]:
        """Bytes left: `[job * ports + port]`."""
    def rates(self) -> NDArray[np.float64]:
        """By flow; 0 where nothing is sent."""
    @property
    def solutions(self) -> int: ...
    @property
    def passes(self) -> int: ...
