"""Many connections of one user to the controller's socket: `identity_flood.py PATH USER COUNT`.

Each sends its next request as soon as the last one is answered or refused. Prints `begun` once all
are connected, and, when its standard input ends, how many were done and how many refused. It
imports nothing after it has changed its user, who may not be allowed to read Python's files.
"""

import asyncio
import json
import os
import struct
import sys

REQUEST = json.dumps({"call": "Renew", "id": "calm#1"}).encode()
FRAME = struct.pack(">I", len(REQUEST)) + REQUEST
COUNTS = {"done": 0, "refused": 0}


async def ask(path, begun):
    reader, writer = await asyncio.open_unix_connection(path)
    begun.release()
    while True:
        writer.write(FRAME)
        (length,) = struct.unpack(">I", await reader.readexactly(4))
        answer = await reader.readexactly(length)
        COUNTS["refused" if b"RESOURCE_EXHAUSTED" in answer else "done"] += 1


async def flood(path, count):
    begun = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(ask(path, begun)) for _ in range(count)]
    for _ in tasks:
        await begun.acquire()
    print("begun", flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, ended.set)
    await ended.wait()
    print(json.dumps(COUNTS), flush=True)
    os._exit(0)


if __name__ == "__main__":
    os.nice(19)
    os.setuid(int(sys.argv[2]))
    asyncio.run(flood(sys.argv[1], int(sys.argv[3])))
