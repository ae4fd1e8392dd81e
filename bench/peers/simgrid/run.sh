#!/usr/bin/env bash
# Runs a trace of flows on SimGrid, building the program when its source is newer.
#
#   run.sh TRACE WARM MEASURED     prints one JSON line
#
# Exit status: that of flows (0 done, 1 bad trace, 2 bad arguments), 3 when a package is missing,
# 4 when the build failed. WEFT_PEERS_BUILD: where to build (build/peers of the checkout).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source_file=$here/flows.cc
build_dir=${WEFT_PEERS_BUILD:-$here/../../../build/peers}/simgrid
program=$build_dir/flows

missing() {
  echo "SimGrid: not available, because $1 is missing; apt-get install $1" >&2
  exit 3
}

build() {
  command -v "${CXX:-g++}" >/dev/null || missing g++
  echo '#include <simgrid/s4u.hpp>' |
    "${CXX:-g++}" -std=c++17 -fsyntax-only -x c++ - 2>/dev/null || missing libsimgrid-dev
  mkdir -p "$build_dir"
  "${CXX:-g++}" -std=c++17 -O2 -Wall -Wextra -o "$program.$$" "$source_file" -lsimgrid >&2 || {
    echo "SimGrid: flows.cc did not build; messages above" >&2
    exit 4
  }
  mv "$program.$$" "$program"
}

[[ -x $program && $program -nt $source_file ]] || build
ldd "$program" | grep -q 'libsimgrid.*not found' && missing libsimgrid-dev
exec "$program" "$@"
