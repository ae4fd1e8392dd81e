"""Loops over datagrams: what is lost, and what loss must not do."""

from weft import _core
from weft.measure import bandwidth, open_peer
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


def test_a_datagram_sender_takes_what_comes_while_it_sends():
    with open_peer("local") as peer:
        run = bandwidth(peer, over="udp", bidirectional=True, size=8192, count=40000)
    found = {k: q.value for k, q in run.record.quantities.items() if isinstance(q, Scalar)}
    # What waits until all is sent overflows the socket's buffer: about 500 of them fit.
    assert found["messages"] > 4000
    assert found["peer.cpu.percent"] < 200
