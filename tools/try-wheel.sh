#!/usr/bin/env bash
# Installs the newest wheel of this machine from dist/ into a new environment, and uses it where no
# compiler, CMake, libibverbs or libfabric can be reached (as root: they are hidden in a mount
# namespace; otherwise the step says what it could not hide).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

wheel=$(ls -t dist/weft-*"$(uname -m)".whl | head -n 1)
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
tools/step.sh "wheel venv" "$(tools/find-python.sh)" -m venv "$room/venv"
tools/step.sh "wheel install" "$room/venv/bin/python" -m pip install --only-binary :all: "$wheel"
cp -r examples "$room/examples"

cat >"$room/use.sh" <<'USE'
set -euo pipefail
cd "$(dirname "$0")"
if [[ $(id -u) == 0 ]]; then
  for path in $(ls /usr/bin/{c++,g++,gcc,cc,cmake,clang,clang++}* \
      /usr/lib/*/lib{ibverbs,fabric,rdmacm,efa}.so* 2>/dev/null || true); do
    mount --bind /dev/null "$path"
  done
fi
python -I -c 'import weft._core, weft.simulate, weft.measure; print(weft._core.__file__)'
weft doctor
weft latency --over tcp --duration 300ms
weft simulate examples/scenarios/one-switch.toml
weft study run rperf-fig11
USE

hide=()
[[ $(id -u) != 0 ]] || hide=(unshare --mount --propagation private)
tools/step.sh "wheel use" env -i HOME="$room" PATH="$room/venv/bin:/usr/bin:/bin" \
  timeout 300 "${hide[@]}" bash "$room/use.sh"
grep -q '^  verbs *not available' build/logs/wheel-use.log ||
  echo "        this run could not hide libibverbs: it shows less than it should" >&2
