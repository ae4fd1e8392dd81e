"""For every suite: child processes start with default signal handling.

`nohup make test &` ignores SIGINT and SIGHUP, and a signal that is ignored stays so in children.
One that is handled does not: they get the default.
"""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)  # this process goes on, as nohup wants
