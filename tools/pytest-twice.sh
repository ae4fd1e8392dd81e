#!/usr/bin/env bash
# Runs pytest; tests that failed run once more, in a new process and alone.
#
#   pytest-twice.sh PYTHON [ARGUMENT...]
#
# A shared machine sometimes takes the processors away for longer than any test can allow for.
# A test that fails twice fails the suite. One that fails once stays in the output, and is listed
# at the end.
set -uo pipefail

python=$1
shift
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT

"$python" -m pytest -o cache_dir="$cache" "$@"
status=$?
[[ $status -eq 1 && -s $cache/v/cache/lastfailed ]] || exit "$status" # 1: tests failed, no worse

again=()
for argument in "$@"; do # alone: not on several workers
  case $argument in -n | --dist) skip=1 ;; *) ((${skip:-0})) || again+=("$argument"); skip=0 ;; esac
done
failed=$(<"$cache/v/cache/lastfailed")
echo "again   the tests that failed"
"$python" -m pytest -o cache_dir="$cache" "${again[@]}" --last-failed --last-failed-no-failures none
status=$?
((status)) || printf 'UNSTEADY failed once, then passed:\n%s\n' "$failed"
exit "$status"
