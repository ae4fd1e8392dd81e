#!/usr/bin/env bash
# Checks every C and C++ file against .clang-format, or writes it so.
#
#   cpp-format.sh check|write
#
# Without clang-format the work is skipped by name, or fails when WEFT_REQUIRE (comma-separated)
# lists clang-format.
set -euo pipefail

case ${1:-} in
  check) options=(--dry-run --Werror) ;;
  write) options=(-i) ;;
  *) echo "usage: cpp-format.sh check|write" >&2 && exit 2 ;;
esac

if ! command -v clang-format >/dev/null; then
  reason="clang-format: not installed; apt-get install clang-format"
  if [[ ,${WEFT_REQUIRE:-}, == *,clang-format,* ]]; then
    echo "FAILED  $reason (WEFT_REQUIRE asks for it)" >&2
    exit 1
  fi
  echo "skip    $reason"
  exit 0
fi

mapfile -t files < <(find core bindings bench clib include src -name '*.cpp' -o -name '*.cc' \
  -o -name '*.hpp' -o -name '*.inc' -o -name '*.inl' -o -name '*.c' -o -name '*.h' | sort)
exec tools/step.sh clang-format clang-format "${options[@]}" "${files[@]}"
