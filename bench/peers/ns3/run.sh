#!/usr/bin/env bash
# Runs a benchmark scenario on ns-3, building the program when its source is newer.
#
#   run.sh s1 [MILLISECONDS] | run.sh s2 [K [SEED]]     prints one JSON line
#
# Exit status: that of lossless (0 done, 1 wrong count, 2 bad arguments), 3 when a package is
# missing, 4 when the build failed. WEFT_PEERS_BUILD: where to build (build/peers of the checkout).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source_file=$here/lossless.cc
build_dir=${WEFT_PEERS_BUILD:-$here/../../../build/peers}/ns3
program=$build_dir/lossless

missing() {
  echo "ns-3: not available, because $1 is missing; apt-get install $1" >&2
  exit 3
}

# Debian's ns3-*.pc files hold a broken include flag ("-I/usr;"), hence no pkg-config here.
build() {
  command -v "${CXX:-g++}" >/dev/null || missing g++
  echo '#include <ns3/point-to-point-module.h>' |
    "${CXX:-g++}" -std=c++17 -fsyntax-only -x c++ - 2>/dev/null || missing libns3-dev
  mkdir -p "$build_dir"
  "${CXX:-g++}" -std=c++17 -O2 -Wall -Wextra -Werror -o "$program.$$" "$source_file" \
    -lns3-point-to-point -lns3-network -lns3-core >&2 || {
    echo "ns-3: lossless.cc did not build; messages above" >&2
    exit 4
  }
  mv "$program.$$" "$program"
}

[[ -x $program && $program -nt $source_file ]] || build
ldd "$program" | grep -q 'libns3.*not found' && missing libns3-dev
exec "$program" "$@"
