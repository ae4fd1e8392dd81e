"""Loops over datagrams: what is lost, and what loss must not do."""

from weft import _core
from weft.measure import bandwidth, latency, open_peer, paced
from weft.measure.accuracy import open_delay_endpoints
from weft.measure.peer.channel_spec import build_loop_spec
from weft.records import Scalar


def test_three_lost_answers_end_a_warm_up():
    spec = build_loop_spec(count=20)
    spec.warmup, spec.loss_timeout_ns = 1000, 10**6
    with open_delay_endpoints({"endpoint": "ud"}, {"wire": "1 us", "loss": 0.5}) as (endpoint,):
        run = _core.ping_pong(endpoint, spec, _core.StopFlag())
        lost_in_all = _core.delay_truth(endpoint).lost
    assert run.counts.sent == 20
    assert lost_in_all - run.counts.lost == 3


def test_the_loss_of_messages_that_are_answered_is_that_of_round_trips():
    """Each way loses a tenth: 1 - 0.9² = 19 % of the round trips, within four deviations."""
    lossy = {"over": "delay", "endpoint": "ud", "delay": {"wire": "1 us", "loss": 0.1}}
    ends = {"count": 600, "loss_timeout": "1 ms", "warmup": 0}
    for run in (latency(**lossy, **ends), paced(**lossy, **ends, rate="20k")):
        found = {k: q.value for k, q in run.record.quantities.items() if isinstance(q, Scalar)}
        assert "loss" not in found
        assert found["round_trip.loss"] == 100 * found["lost"] / 600
        assert abs(found["round_trip.loss"] - 19) < 4 * 100 * (0.19 * 0.81 / 600) ** 0.5
    sent_one_way = bandwidth(**lossy, count=600, warmup=0)
    assert "round_trip.loss" not in sent_one_way.record.quantities


def test_a_datagram_sender_takes_what_comes_while_it_sends():
    with open_peer("local") as peer:
        run = bandwidth(peer, over="udp", bidirectional=True, size=8192, count=40000)
    found = {k: q.value for k, q in run.record.quantities.items() if isinstance(q, Scalar)}
    # What waits until all is sent overflows the socket's buffer: about 500 of them fit.
    assert found["messages"] > 4000
    assert found["peer.cpu.percent"] < 200
