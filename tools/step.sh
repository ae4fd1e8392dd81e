#!/usr/bin/env bash
# Runs one step of a make target: one line when it succeeds, its whole output when it fails.
#
#   step.sh NAME COMMAND [ARGUMENT...]     output is kept in build/logs/NAME.log
set -uo pipefail

name=$1
shift
log=build/logs/${name//[^A-Za-z0-9.-]/-}.log
mkdir -p build/logs

[[ -t 1 ]] && printf '...     %s\r' "$name"
SECONDS=0
if "$@" >"$log" 2>&1 </dev/null; then
  printf 'ok      %s (%d s)\n' "$name" "$SECONDS"
else
  status=$?
  cat "$log"
  command=$*
  ((${#command} <= 120)) || command="${command:0:120} ..."
  printf 'FAILED  %s: exit status %d from: %s\n        output above, and in %s\n' \
    "$name" "$status" "$command" "$log" >&2
  exit "$status"
fi
