"""A client of the controller's socket as a process that may be killed: `socket_load.py PATH SEED`.

It registers, connects, disconnects, renews and deregisters, one request after another, and sends
what was not answered again with the same key. Each line of its output is a registration (`+ ID`)
or its end (`- ID`). A line on its input makes it finish its request, print what it was told is
there (`= JSON`: connections of each registration) and wait for another line. It needs nothing
but Python, so that it starts in a moment.
"""

import json
import os
import random
import select
import socket
import struct
import sys
import time

HOSTS = ("h1", "h2", "h3", "h4")
APPLICATIONS = ("calm", "keen")
TTL_S, RENEW_S, PAUSE_S = 8.0, 1.0, 0.01
AGAIN = {"UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED"}


class Caller:
    """Requests over a connection that is made anew when it is lost."""

    def __init__(self, path):
        self.path, self.line, self.answered = path, None, 0

    def call(self, request):
        """The answer, whenever it comes; a refusal ends the process."""
        while True:
            answer = self._try(json.dumps(request).encode())
            if answer is not None and (answer["ok"] or answer["code"] not in AGAIN):
                break
            time.sleep(0.02)
        if not answer["ok"]:
            sys.exit(f"{request}: {answer}")
        self.answered += 1
        return answer

    def _try(self, body):
        try:
            if self.line is None:
                self.line = socket.socket(socket.AF_UNIX)
                self.line.settimeout(30.0)
                self.line.connect(self.path)
            self.line.sendall(struct.pack(">I", len(body)) + body)
            (length,) = struct.unpack(">I", self._read(4))
            return json.loads(self._read(length))
        except OSError:
            self.line.close()
            self.line = None
            return None

    def _read(self, count):
        data = b""
        while len(data) < count:
            piece = self.line.recv(count - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return data


class Job:
    """A client's registrations, and what it does to them."""

    def __init__(self, path, seed):
        self.caller, self.random = Caller(path), random.Random(seed)
        self.name, self.sequence = f"job{seed}", 0
        self.there, self.renewed_s = {}, {}

    def key(self):
        self.sequence += 1
        return {"client": self.name, "sequence": self.sequence}

    def register(self):
        name = self.random.choice(APPLICATIONS)
        request = {"call": "Register", "key": self.key(), "application": name, "ttl_s": TTL_S}
        id_ = self.caller.call({**request, "job": f"{self.name}-{self.sequence}"})["id"]
        self.there[id_], self.renewed_s[id_] = [], time.monotonic()
        print("+", id_, flush=True)

    def step(self):
        draw = self.random.random()
        if not self.there or (draw < 0.05 and len(self.there) < 3):
            return self.register()
        id_ = self.random.choice(list(self.there))
        names = self.there[id_]
        if draw < 0.08:
            self.caller.call({"call": "Deregister", "key": self.key(), "id": id_})
            del self.there[id_], self.renewed_s[id_]
            print("-", id_, flush=True)
        elif draw < 0.5 and names:
            self.caller.call({"call": "Disconnect", "connection": names.pop(0)})
        elif len(names) < 20:
            source, destination = self.random.sample(HOSTS, 2)
            ends = {"source": source, "destination": destination}
            request = {"call": "Connect", "key": self.key(), "id": id_, **ends}
            names.append(self.caller.call(request)["connection"])
        return None

    def renew(self):
        for id_, renewed_s in self.renewed_s.items():
            if time.monotonic() > renewed_s + RENEW_S:
                self.caller.call({"call": "Renew", "id": id_})
                self.renewed_s[id_] = time.monotonic()

    def run(self):
        """A line of the input pauses it, the next one resumes it; leases are kept meanwhile."""
        paused = False
        while True:
            if select.select([0], [], [], PAUSE_S)[0]:
                lines = os.read(0, 64)  # not by readline, which may keep a line that select misses
                if not lines:
                    return
                for _ in lines:
                    paused = not paused
                    if paused:
                        told = {"there": self.there, "answered": self.caller.answered}
                        print("=", json.dumps(told), flush=True)
            self.renew()
            if not paused:
                self.step()


if __name__ == "__main__":
    Job(sys.argv[1], int(sys.argv[2])).run()
