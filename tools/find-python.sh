#!/usr/bin/env bash
# Prints the path of a Python >= 3.11: $PYTHON if set, else python3, else the newest python3.N.
# Exit status 1, with what was found, when there is none.
set -euo pipefail

is_suitable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

found=""
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
  path=$(command -v "$candidate") || continue
  if is_suitable "$path"; then
    echo "$path"
    exit 0
  fi
  # A version manager's shim may fail here too.
  version=$("$path" --version 2>&1 | head -n 1) || true
  found+=" $path ($version);"
done
echo "Python 3.11 or newer not found;${found:- no Python at all;} install one, or name it:" \
  "make PYTHON=/path/to/python3 ..." >&2
exit 1
