"""For every suite: child processes start with default signal handling, and without gRPC's threads.

`nohup make test &` ignores SIGINT and SIGHUP, and a signal that is ignored stays so in children.
One that is handled does not: they get the default.

gRPC starts its threads again in every forked child, and aborts one in a hundred before it becomes
its command. No test uses gRPC in a fork.

Laws hold at any speed: an example has no deadline, which a busy machine would miss.
"""

import os
import signal

from hypothesis import settings

settings.register_profile("at any speed", deadline=None)
settings.load_profile("at any speed")

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)  # this process goes on, as nohup wants
