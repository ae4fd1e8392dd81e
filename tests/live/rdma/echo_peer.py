"""The other process of a fault test: answers one endpoint until it is killed.

echo_peer.py DEVICE KIND PEER_ADDRESS_IN_HEX     prints its own address
"""

import sys

from verbs_pairs import loop, opened, settings

from weft._core import StopFlag, echo

device, kind, peer = sys.argv[1:]
with opened(settings(device=device, endpoint=kind, receive_depth=16)) as (endpoint,):
    endpoint.connect(bytes.fromhex(peer), 5000)
    print(endpoint.address().hex(), flush=True)
    print(echo(endpoint, loop(), StopFlag()).error)
