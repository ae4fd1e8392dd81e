#!/bin/sh
# Makes the Python code of the .proto files, which is checked in.
set -eu
cd "$(dirname "$0")/.."
exec "${PYTHON:-.venv/bin/python}" -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src \
    src/weft/control/service/weft.proto src/weft/simulate/workload/chakra.proto src/weft/control/cluster/etcd.proto
