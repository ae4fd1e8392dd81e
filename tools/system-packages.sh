#!/usr/bin/env bash
# Sees to the system packages weft needs. Silent when nothing is missing.
#
#   system-packages.sh build|demo|test|live|rdma|apps|bench|all
#
# demo: what compiling needs; the others: also the optional packages of that purpose (build: headers
# of the transports verbs and ofi).
# As root, missing packages are installed with apt-get. Otherwise they are named: the run goes on
# without the optional ones and stops (exit status 1) without the needed ones.
# Debian starts a package's service when it is installed, and at every boot. The tests start their
# own servers, so services that are installed here stay off: a policy-rc.d refuses to start them
# meanwhile, and they are disabled. Services that were there before are left alone.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
purpose=${1:-}
root=${WEFT_SYSTEM_ROOT:-}  # tests set it
services=(etcd opensm postgresql prometheus)
policy=$root/usr/sbin/policy-rc.d
our_policy=
log=$(mktemp)
trap 'rm -f "$log" $our_policy' EXIT

say() { echo "system  $*"; }

has_cmake() {
  local version
  version=$(cmake --version 2>/dev/null | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
  [[ -n $version && $(printf '%s\n3.18\n' "$version" | sort -V | head -n 1) == 3.18 ]]
}

has_headers() {
  "$1" -c 'import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'
}

# The first Python package of this distribution that is new enough; python3 when apt cannot tell.
python_package() {
  local name version
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    version=$(apt-cache show --no-all-versions "$name" 2>/dev/null | sed -n 's/^Version: //p')
    if [[ -n $version ]] && dpkg --compare-versions "$version" ge 3.11; then
      echo "$name"
      return
    fi
  done
  echo python3
}

missing_needed() {
  local python base
  command -v g++ >/dev/null || echo g++
  command -v make >/dev/null || echo make
  has_cmake || echo cmake
  if ! python=$("$here/find-python.sh" 2>/dev/null); then
    base=$(python_package)
    printf '%s\n' "$base" "$base-venv" "$base-dev"
    return
  fi
  base=$(basename "$python")
  [[ $base == python3* ]] || base=python3
  "$python" -c 'import ensurepip, venv' 2>/dev/null || echo "$base-venv"
  has_headers "$python" || echo "$base-dev"
}

has_ns3() { compgen -G '/usr/include/ns3*/point-to-point-module.h' >/dev/null; }

has_header() { g++ -E -x c++ - <<<"#include <$1>" >/dev/null 2>&1; }

has_verbs_providers() { compgen -G '/usr/lib/*/libibverbs/librxe-*.so' >/dev/null; }

missing_of_virtual_machine() {
  command -v qemu-system-x86_64 >/dev/null || echo qemu-system-x86
  command -v busybox >/dev/null || echo busybox-static
  PATH=$PATH:/usr/sbin:/sbin command -v modprobe >/dev/null || echo kmod
  PATH=$PATH:/usr/sbin:/sbin command -v rdma >/dev/null || echo iproute2
  command -v xz >/dev/null || echo xz-utils
  has_verbs_providers || echo ibverbs-providers
  command -v ib_send_lat >/dev/null || echo perftest
  PATH=$PATH:/usr/sbin:/sbin command -v tcpdump >/dev/null || echo tcpdump
}

missing_of_subnet() {
  local PATH=$PATH:/usr/sbin:/sbin
  command -v ibsim >/dev/null || echo ibsim-utils
  command -v opensm >/dev/null || echo opensm
  command -v smpquery >/dev/null || echo infiniband-diags
}

# Only the optional packages that this purpose can use are named or installed.
missing_optional() {
  if [[ $purpose =~ ^(demo|test|all)$ ]]; then
    command -v clang-format >/dev/null || echo clang-format
  fi
  if [[ $purpose =~ ^(demo|bench|all)$ ]]; then
    has_ns3 || echo libns3-dev
  fi
  if [[ $purpose =~ ^(build|test|rdma|bench|all)$ ]]; then
    has_header rdma/fabric.h || echo libfabric-dev
    has_header infiniband/verbs.h || echo libibverbs-dev
  fi
  if [[ $purpose =~ ^(rdma|all)$ ]]; then
    missing_of_virtual_machine
  fi
  if [[ $purpose =~ ^(test|live|bench|all)$ ]]; then
    missing_of_subnet
  fi
  if [[ $purpose =~ ^(test|live|all)$ ]]; then
    command -v etcd >/dev/null || echo etcd-server
    command -v etcdctl >/dev/null || echo etcd-client
    compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null || echo libfaketime
  fi
  if [[ $purpose =~ ^(live|apps|all)$ ]]; then
    command -v rsync >/dev/null || echo rsync
  fi
  if [[ $purpose =~ ^(test|live|all)$ ]]; then
    PATH=$PATH:/usr/sbin:/sbin command -v nft >/dev/null || echo nftables
  fi
  if [[ $purpose =~ ^(apps|all)$ ]]; then
    compgen -G '/usr/lib/postgresql/*/bin/pg_dump' >/dev/null || echo postgresql
    command -v java >/dev/null || echo default-jre-headless
  fi
  if [[ $purpose =~ ^(test|all)$ ]]; then
    command -v promtool >/dev/null || echo prometheus
    command -v systemd-analyze >/dev/null || echo systemd
  fi
  if [[ $purpose =~ ^(test|bench|all)$ ]]; then
    command -v fi_info >/dev/null || echo libfabric-bin
  fi
  if [[ $purpose =~ ^(bench|all)$ ]]; then
    has_header simgrid/s4u.hpp || echo libsimgrid-dev
    command -v sockperf >/dev/null || echo sockperf
    command -v iperf3 >/dev/null || echo iperf3
  fi
  if [[ $purpose =~ ^(rdma|bench|all)$ ]]; then
    command -v qperf >/dev/null || echo qperf
  fi
  if [[ $purpose =~ ^(demo|all)$ ]]; then
    command -v chromium >/dev/null || command -v google-chrome >/dev/null || echo chromium
  fi
}

use_of() {
  case $1 in
    clang-format) echo "make check" ;;
    libns3-dev | libsimgrid-dev | sockperf | iperf3) echo "make bench" ;;
    libfabric-bin) echo "make bench, a test of the ofi transport" ;;
    libfabric-dev) echo "the ofi transport" ;;
    qperf) echo "make bench, make test-rdma" ;;
    libibverbs-dev) echo "the verbs transport" ;;
    qemu-system-x86 | busybox-static | kmod | iproute2 | xz-utils | ibverbs-providers | perftest | \
      tcpdump) echo "make test-rdma" ;;
    ibsim-utils | opensm | infiniband-diags) echo "tests and bench of the infiniband driver" ;;
    prometheus | systemd) echo "tests of metrics, alert rules and units" ;;
    chromium) echo "the picture test of the report" ;;
    etcd-server | etcd-client) echo "make test-distributed" ;;
    libfaketime) echo "jumps of the clock in make test-control, make test-distributed" ;;
    rsync) echo "make test-live, make test-apps" ;;
    nftables) echo "guarded marks at Linux ports" ;;
    postgresql | default-jre-headless) echo "make test-apps" ;;
  esac
}

describe() {
  local package text=""
  for package in "$@"; do text+=", $package ($(use_of "$package"))"; done
  echo "${text:2}"
}

apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 "$@" >"$log" 2>&1; }

install() {
  local service status=0 enabled=" "
  say "installing $*"
  for service in "${services[@]}"; do
    if is_enabled "$service"; then enabled+="$service "; fi
  done
  refuse_starts
  apt install -y --no-install-recommends "$@" ||
    { apt update && apt install -y --no-install-recommends "$@"; } || status=$?
  for service in "${services[@]}"; do
    if is_enabled "$service" && [[ $enabled != *" $service "* ]]; then
      systemctl ${root:+--root="$root"} disable "$service" >>"$log" 2>&1 ||
        say "$service is enabled and could not be disabled"
    fi
  done
  return "$status"
}

is_enabled() { compgen -G "$root/etc/systemd/system/*.wants/$1.service" >/dev/null; }

# Until the script ends; a policy of the machine's own is kept.
refuse_starts() {
  [[ ! -e $policy && -w ${policy%/*} ]] || return 0
  our_policy=$policy
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
}

may_install() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

name_optional() {
  local packages
  mapfile -t packages < <(missing_optional)
  ((${#packages[@]} == 0)) || say "$1: $(describe "${packages[@]}")"
}

# A new container has no package lists; python_package reads them.
fetch_lists_once() {
  compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null || apt update || true
}

stop_without() {
  local sudo=sudo
  [[ $(id -u) == 0 ]] && sudo=
  {
    say "missing and needed: $*"
    "$here/find-python.sh" >/dev/null || true
    if command -v cmake >/dev/null && ! has_cmake; then
      say "$(cmake --version | head -n 1) is too old; 3.18 or newer is needed"
    fi
    name_optional "optional, missing too"
    say "install what is needed, then run make again:"
    echo "        ${sudo:+$sudo }apt-get update && ${sudo:+$sudo }apt-get install -y $*"
  } >&2
  exit 1
}

see_to_needed() {
  local packages
  mapfile -t packages < <(missing_needed)
  if ((${#packages[@]})) && may_install; then
    fetch_lists_once
    mapfile -t packages < <(missing_needed)
    install "${packages[@]}" || cat "$log" >&2
    mapfile -t packages < <(missing_needed)
  fi
  ((${#packages[@]} == 0)) || stop_without "${packages[@]}"
}

see_to_optional() {
  local packages package
  mapfile -t packages < <(missing_optional)
  if [[ $purpose != demo ]] && may_install; then
    for package in "${packages[@]}"; do install "$package" || true; done
  fi
  name_optional "optional, going on without"
}

[[ $purpose =~ ^(build|demo|test|live|rdma|apps|bench|all)$ ]] || {
  echo "usage: system-packages.sh build|demo|test|live|rdma|apps|bench|all" >&2
  exit 2
}
see_to_needed
see_to_optional
