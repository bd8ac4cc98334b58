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
  scripts/setup.sh demo tracefs
elif [ "$real" != 0 ]; then
  scripts/setup.sh demo || true   # the tests that need it say why they are skipped
  scripts/setup.sh tracefs || true
fi

run=()
if [ "$real" != 0 ] && [ "$(id -u)" != 0 ] && command -v sudo >/dev/null && sudo true; then
  # nothing of root's is left in the user's checkout
  run=(sudo env PYTHONDONTWRITEBYTECODE=1 COLDTRACE_TEST_REAL="$real")
  set -- -p no:cacheprovider "$@"
fi
exec "${run[@]}" .venv/bin/python -m pytest "$@"
