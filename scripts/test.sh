#!/bin/bash
# test.sh [PYTEST ARGUMENT...]: every test that can run here. Tracing needs root, so a user's tests
# run through sudo where there is one; without it the tests that trace are skipped.
# COLDTRACE_TEST_REAL=1 makes such a skip a failure, 0 leaves those tests out.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

real=${COLDTRACE_TEST_REAL:-}
scripts/setup.sh venv
if [ "$real" = 1 ]; then
  scripts/setup.sh compiler browser tracefs demo
elif [ "$real" != 0 ]; then
  # the tests that need what is missing say so
  for part in compiler browser tracefs demo; do scripts/setup.sh "$part" || true; done
fi

run=()
if [ "$real" != 0 ] && [ "$(id -u)" != 0 ] && command -v sudo >/dev/null && sudo true; then
  # root leaves nothing of its own in the user's checkout
  run=(sudo env PYTHONDONTWRITEBYTECODE=1 COLDTRACE_TEST_REAL="$real")
  set -- -p no:cacheprovider "$@"
fi
exec "${run[@]}" .venv/bin/python -m pytest "$@"
