"""Many connections of one user to the controller's socket.

    identity_flood.py PATH USER CONNECTIONS CALLS_PER_S

Sends so many requests a second, over one connection after the other, whether or not those before
are answered. Prints `begun` once all are connected, and, when its standard input ends, how many
were sent, done and refused. It imports nothing after it has changed its user, who may not be
allowed to read Python's files.
"""

import asyncio
import json
import os
import socket
import struct
import sys
import time

REQUEST = json.dumps({"call": "Renew", "id": "calm#1"}).encode()
FRAME = struct.pack(">I", len(REQUEST)) + REQUEST
COUNTS = {"sent": 0, "done": 0, "refused": 0}
TICK_S = 0.01


async def read_answers(reader):
    while True:
        (length,) = struct.unpack(">I", await reader.readexactly(4))
        answer = await reader.readexactly(length)
        COUNTS["refused" if b"RESOURCE_EXHAUSTED" in answer else "done"] += 1


async def send(writers, calls_per_s):
    began_s = time.monotonic()
    while True:
        for _ in range(int((time.monotonic() - began_s) * calls_per_s) - COUNTS["sent"]):
            writers[COUNTS["sent"] % len(writers)].write(FRAME)
            COUNTS["sent"] += 1
        await asyncio.sleep(TICK_S)


def connect(path):
    """Waits while the queue of the listener is full, which asyncio takes for a connection."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(path)
    return line


async def flood(path, count, calls_per_s):
    lines = [await asyncio.open_unix_connection(sock=connect(path)) for _ in range(count)]
    tasks = [asyncio.create_task(read_answers(reader)) for reader, _ in lines]
    tasks.append(asyncio.create_task(send([writer for _, writer in lines], calls_per_s)))
    print("begun", flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, ended.set)
    await ended.wait()
    print(json.dumps(COUNTS), flush=True)
    os._exit(0)


if __name__ == "__main__":
    os.nice(19)
    os.setuid(int(sys.argv[2]))
    asyncio.run(flood(sys.argv[1], int(sys.argv[3]), float(sys.argv[4])))
