"""A client's session against a model of the controller, over a link that loses and breaks.

Whatever is lost, wherever: once everything that was sent is answered, the controller has exactly
the connections that are open, each once, under one registration that is alive.
"""

from __future__ import annotations

from collections import Counter, deque

import pytest
from controller_model import EXHAUSTED, FAILED_PRECONDITION, LATE, UNAVAILABLE, ModelController
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from some_examples import examples

from weft.control.client.client_session import (
    MAX_BATCHES,
    MAX_EVENTS,
    Ack,
    Connect,
    Disconnect,
    Event,
    Registration,
    Renew,
    Session,
)

HOSTS = st.sampled_from(["a", "b", "c", "nowhere"])


class Link:
    """What is on its way on one stream, to the controller and back."""

    def __init__(self) -> None:
        self.there: deque[tuple[Event, ...]] = deque()
        self.back: deque[list[Ack]] = deque()


class Conversation(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.controller = ModelController(hosts=frozenset({"a", "b", "c"}))
        self.session = Session(client="client")
        self.link = Link()
        self.late: deque[tuple[Event, ...]] = deque()  # of streams that broke
        self.untold = 0  # events that will be carried out and answered as if they might not be
        self.open: dict[int, tuple[str, str]] = {}

    # ---- The program --------------------------------------------------------------------------

    @rule(source=HOSTS, destination=HOSTS)
    def opens(self, source: str, destination: str) -> None:
        self.open[self.session.add(source, destination)] = (source, destination)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), twice=st.booleans())
    def closes(self, data: st.DataObject, twice: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        del self.open[number]
        for _ in range(1 + twice):
            self.session.remove(number)

    @rule()
    def renews(self) -> None:
        self.session.renew()

    # ---- The link -----------------------------------------------------------------------------

    @precondition(lambda self: self.session.registration is None)
    @rule(is_lost=st.booleans())
    def registers(self, is_lost: bool) -> None:
        key = self.session.registration_key()
        made = self.controller.register((key.client, key.sequence), "sort", 10.0)
        assert not isinstance(made, int)
        if not is_lost:
            self.session.accept_registration(
                Registration(id=made.id, level=made.level, ttl_s=made.ttl_s)
            )

    @rule()
    def sends(self) -> None:
        if batch := self.session.take_batch():
            self.link.there.append(batch)

    @precondition(lambda self: self.link.there)
    @rule()
    def arrives(self) -> None:
        batch = self.link.there.popleft()
        self.link.back.append([self.carried_out(event) for event in batch])

    @precondition(lambda self: self.link.back)
    @rule()
    def is_acknowledged(self) -> None:
        if self.session.accept_acks(self.link.back.popleft()).has_expired:
            self.breaks(arrive=0)  # as the worker does: another stream for another registration

    @rule(arrive=st.integers(0, 3))
    def breaks(self, arrive: int) -> None:
        """Some batches have arrived before, others arrive later or never."""
        for _ in range(min(arrive, len(self.link.there))):
            self.arrives()
        self.late += self.link.there
        self.link = Link()
        self.session.requeue_unacknowledged()

    @precondition(lambda self: self.late)
    @rule(is_lost=st.booleans())
    def arrives_late(self, is_lost: bool) -> None:
        batch = self.late.popleft()
        if not is_lost:
            for event in batch:
                self.carried_out(event)

    def carried_out(self, event: Event) -> Ack:
        answer = self.answer(event)
        if not self.untold:
            return answer
        self.untold -= 1
        return Ack(LATE)

    def answer(self, event: Event) -> Ack:
        if isinstance(event, Renew):
            return Ack(self.controller.renew(event.registration))
        if isinstance(event, Disconnect):
            return Ack(self.controller.disconnect(event.connection))
        key = (event.key.client, event.key.sequence)
        code = self.controller.connect(key, event.registration, event.source, event.destination)
        return Ack(code)

    # ---- The controller -----------------------------------------------------------------------

    @precondition(lambda self: self.controller.registrations)
    @rule(data=st.data())
    def lease_ends(self, data: st.DataObject) -> None:
        ids = st.sampled_from(sorted(self.controller.registrations))
        self.controller.expire(data.draw(ids))

    @rule(code=st.sampled_from([EXHAUSTED, UNAVAILABLE]), count=st.integers(1, 3))
    def is_busy(self, code: int, count: int) -> None:
        self.controller.refusals.extend([code] * count)

    @rule(count=st.integers(1, 3))
    def is_late(self, count: int) -> None:
        self.untold += count

    # ---- What always holds --------------------------------------------------------------------

    @invariant()
    def no_queue_is_longer_than_what_is_open_or_may_be(self) -> None:
        session = self.session
        assert len(session._unacknowledged) <= MAX_BATCHES
        assert all(len(batch) <= MAX_EVENTS + 1 for batch in session._unacknowledged)
        waiting = Counter(kind for kind, _ in session._outbox)
        assert waiting[Connect] <= len(self.open) + len(session._maybe_executed)

    @invariant()
    def nothing_is_closed_before_it_is_opened(self) -> None:
        waiting = list(self.session._outbox)
        for place, (kind, number) in enumerate(waiting):
            assert kind is not Disconnect or (Connect, number) not in waiting[place:]

    def teardown(self) -> None:
        """Everything is answered from now on: the controller has what is open."""
        self.controller.refusals.clear()
        self.untold = 0
        self.late.clear()
        self.breaks(arrive=0)
        self.late.clear()
        for _ in range(1000):
            if self.session.registration is None:
                self.registers(is_lost=False)
            self.session.renew()
            self.sends()
            while self.link.there:
                self.arrives()
            while self.link.back:
                self.is_acknowledged()
            if not self.session._outbox and self.session.registration is not None:
                break
        assert self.session.registration is not None
        id_ = self.session.registration.id
        assert set(self.controller.registrations) == {id_}
        own = [ends for owner, *ends in self.controller.connections.values() if owner == id_]
        wanted = [pair for pair in self.open.values() if "nowhere" not in pair]
        assert Counter(map(tuple, own)) == Counter(wanted)
        told = [number for number, own in self.session.connections.items() if own.is_counted]
        assert len(told) == len(wanted)


Conversation.TestCase.settings = settings(examples(300), stateful_step_count=60)
TestConversation = Conversation.TestCase


def opened(session: Session, count: int) -> list[int]:
    session.accept_registration(Registration(id="sort#1", level=3, ttl_s=10.0))
    return [session.add("a", "b") for _ in range(count)]


def test_what_was_on_its_way_goes_again_unchanged_and_first() -> None:
    session = Session(client="client")
    opened(session, 3)
    first = session.take_batch()
    session.add("a", "c")
    session.requeue_unacknowledged()
    again = session.take_batch()
    assert again[:3] == first
    assert [event.destination for event in again if isinstance(event, Connect)][3:] == ["c"]


def test_one_that_was_never_sent_is_forgotten_when_it_is_closed() -> None:
    session = Session(client="client")
    (number,) = opened(session, 1)
    session.remove(number)
    assert session.take_batch() == ()


def test_one_that_may_have_been_carried_out_is_opened_and_closed_again() -> None:
    session = Session(client="client")
    (number,) = opened(session, 1)
    session.take_batch()
    session.requeue_unacknowledged()
    session.remove(number)
    assert [type(event) for event in session.take_batch()] == [Connect, Disconnect]


@pytest.mark.parametrize(("code", "again"), [(LATE, [Connect, Disconnect]), (EXHAUSTED, [])])
def test_one_that_was_put_off_and_closed_goes_again_only_where_it_may_have_been_carried_out(
    code: int, again: list[type[Event]]
) -> None:
    session = Session(client="client")
    (number,) = opened(session, 1)
    session.take_batch()
    session.accept_acks([Ack(code)])
    session.remove(number)
    assert [type(event) for event in session.take_batch()] == again


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_disconnect_goes_after_its_connect_wherever_the_stream_breaks(is_sent: bool) -> None:
    session = Session(client="client")
    (number,) = opened(session, 1)
    session.take_batch()
    session.remove(number)
    session.take_batch()
    session.accept_acks([Ack(LATE)])  # its disconnect is on its way, and both go again
    if is_sent:
        session.take_batch()
    session.requeue_unacknowledged()
    assert [type(event) for event in session.take_batch()] == [Connect, Disconnect]


def test_a_closed_connection_that_is_refused_again_says_nothing_of_the_lease() -> None:
    session = Session(client="client")
    (number,) = opened(session, 1)
    session.take_batch()
    session.requeue_unacknowledged()
    session.remove(number)
    session.take_batch()
    assert not session.accept_acks([Ack(FAILED_PRECONDITION), Ack(0)]).has_expired
    assert session.registration is not None


def test_a_renewal_goes_before_everything_else() -> None:
    session = Session(client="client")
    opened(session, 2)
    session.renew()
    assert isinstance(session.take_batch()[0], Renew)


def test_after_a_lapse_registration_and_connections_have_new_keys() -> None:
    session = Session(client="client")
    session.registration_key()
    (number,) = opened(session, 1)
    session.take_batch()
    before = session.connections[number].key
    assert session.accept_acks([Ack(FAILED_PRECONDITION)]).has_expired
    assert session.registration_key().sequence == 3
    session.accept_registration(Registration(id="sort#2", level=3, ttl_s=10.0))
    after = session.connections[number].key
    assert before is not None
    assert after is not None
    assert after.sequence > before.sequence
