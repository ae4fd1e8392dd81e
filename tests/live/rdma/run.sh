#!/usr/bin/env bash
# What `make test-rdma` runs inside the virtual machine: the tests, then the peers beside weft.
#
#   run.sh PYTHON
set -uo pipefail

python=$1
status=0
tools/pytest-twice.sh "$python" -rs tests/live/rdma || status=$?
"$python" tests/live/rdma/beside.py || status=$?
exit "$status"
