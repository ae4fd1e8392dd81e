"""A client of the controller's benchmark, as a process of its own: events on a stream for a while.

`python -m bench.control_client ADDRESS NUMBER SECONDS HOSTS MOST`: registers an application, then
opens connections between hosts drawn at random up to MOST, and from then on closes the oldest for
each that it opens. Prints the events that were acknowledged and the seconds that took.
"""

from __future__ import annotations

import queue
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator

import grpc

from weft.control.service import weft_pb2 as pb
from weft.control.service.methods import method_path

BATCH = 50
AHEAD = 4


def main(address: str, number: int, seconds: float, hosts: int, most: int) -> int:
    rng = random.Random(number)
    with grpc.insecure_channel(address) as channel:
        id_ = _register(channel, number)
        room: queue.Queue[None] = queue.Queue()
        for _ in range(AHEAD):
            room.put(None)
        ending = threading.Event()
        stream = channel.stream_stream(
            method_path("Events"),
            request_serializer=pb.EventBatch.SerializeToString,
            response_deserializer=pb.AckBatch.FromString,
        )(_batches(rng, id_, number, hosts, most, room, ending))
        began, done = time.monotonic(), 0
        for answer in stream:
            bad = [ack for ack in answer.acks if ack.code]
            assert not bad, bad[0]
            done += len(answer.acks)
            room.put(None)
            if time.monotonic() - began > seconds:
                ending.set()
        print(done, time.monotonic() - began)
    return 0


def _register(channel: grpc.Channel, number: int) -> str:
    method = channel.unary_unary(
        method_path("Register"),
        request_serializer=pb.RegisterRequest.SerializeToString,
        response_deserializer=pb.RegisterReply.FromString,
    )
    key = pb.Key(client=f"bench{number}", sequence=1)
    request = pb.RegisterRequest(key=key, application=f"app{number % 20}", ttl_s=3600)
    return str(method(request, timeout=60).id)


def _batches(
    rng: random.Random,
    id_: str,
    number: int,
    hosts: int,
    most: int,
    room: queue.Queue[None],
    ending: threading.Event,
) -> Iterator[pb.EventBatch]:
    """One as soon as there is room for it on the way."""
    client, sequence, there = f"bench{number}", 1, deque[str]()
    while not ending.is_set():
        room.get()
        batch = pb.EventBatch()
        for _ in range(BATCH):
            if len(there) >= most:
                batch.events.add(disconnect=pb.DisconnectRequest(connection=there.popleft()))
                continue
            sequence += 1
            source, destination = rng.sample(range(hosts), 2)
            request = pb.ConnectRequest(
                key=pb.Key(client=client, sequence=sequence),
                id=id_,
                source=f"h{source}",
                destination=f"h{destination}",
            )
            batch.events.add(connect=request)
            there.append(f"{client}/{sequence}")
        yield batch


if __name__ == "__main__":
    _, where, *numbers = sys.argv
    raise SystemExit(
        main(where, int(numbers[0]), float(numbers[1]), int(numbers[2]), int(numbers[3]))
    )
