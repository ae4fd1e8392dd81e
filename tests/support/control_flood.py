"""A caller of the controller that never waits, as a process: `control_flood.py KIND ADDRESS ID`.

KIND: `calls` keeps 100 calls on the way, `stream` sends batches of 1,000 connections as fast as
they are taken, `questions` asks for everything there is to ask on 16 threads. Prints `begun` once
it was answered, and, when its standard input ends, what it sent, what was done, what was refused.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from control_process import Client

from weft.control.service import weft_pb2 as pb
from weft.control.service.methods import method_path

AHEAD = 100
BATCH = 1000
HOSTS = ("h0", "h1", "h2", "h3")
ENDING = threading.Event()


class Flood:
    def __init__(self, address: str, id_: str) -> None:
        self.client = Client(address)
        self.id = id_
        self.count: Counter[str] = Counter()
        self.begun = False
        self.ends = itertools.cycle(itertools.permutations(HOSTS, 2))

    def connect(self) -> pb.ConnectRequest:
        source, destination = next(self.ends)
        return pb.ConnectRequest(
            key=self.client.key(), id=self.id, source=source, destination=destination
        )

    def note(self, code: Any, done: int = 1) -> None:
        if not self.begun:
            self.begun = True
            print("begun", flush=True)
        self.count["done" if code is grpc.StatusCode.OK else code.name] += done

    # ---- Kinds --------------------------------------------------------------------------------

    def calls(self) -> None:
        method = self.client.channel.unary_unary(
            method_path("Connect"), request_serializer=pb.ConnectRequest.SerializeToString
        )
        room = threading.Semaphore(AHEAD)

        def done(future: Any) -> None:
            self.note(future.code())
            room.release()

        while not ENDING.is_set():
            room.acquire()
            self.count["sent"] += 1
            method.future(self.connect(), timeout=60).add_done_callback(done)

    def stream(self) -> None:
        for answer in self.client.stream(self.batches()):
            self.note(grpc.StatusCode.OK, len(answer.acks))
            if ENDING.is_set():
                return

    def batches(self) -> Iterator[pb.EventBatch]:
        while not ENDING.is_set():
            self.count["sent"] += BATCH
            yield pb.EventBatch(events=[pb.Event(connect=self.connect()) for _ in range(BATCH)])

    def questions(self) -> None:
        threads = [threading.Thread(target=self.ask) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def ask(self) -> None:
        wanted: list[tuple[str, Any]] = [
            ("Status", pb.StatusRequest(applications=True, ports=True, revisions=1000)),
            ("Explain", pb.ExplainRequest(id=self.id)),
            ("Explain", pb.ExplainRequest(port=pb.PortId(node="h0", port=1))),
        ]
        for call in itertools.cycle(wanted):
            if ENDING.is_set():
                return
            self.count["sent"] += 1
            try:
                self.client.call(*call)
                self.note(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                self.note(error.code())


def main(kind: str, address: str, id_: str) -> None:
    flood = Flood(address, id_)
    threading.Thread(target=sent, args=(getattr(flood, kind),), daemon=True).start()
    sys.stdin.read()
    ENDING.set()
    told = " ".join(f"{name}={count}" for name, count in sorted(flood.count.items()))
    print(told, flush=True)
    os._exit(0)  # whatever is still on its way


def sent(kind: Callable[[], None]) -> None:
    """Until it ends; if that is by a mistake, so does the process."""
    try:
        kind()
    except grpc.RpcError as error:
        print(error, flush=True)
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
