# Sourced by the scripts beside it: plain words to the user, root where it's needed, progress.

# without it bash goes on where what it ran took the Ctrl-C
trap 'exit 130' INT

die() { printf 'coldtrace: %s\n' "$*" >&2; exit 1; }

# as_root COMMAND...: as root itself, else through sudo.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# need_root WHY: asks for the password now, where a progress line can't hide the question.
need_root() {
  [ "$(id -u)" = 0 ] && return
  command -v sudo >/dev/null || die "$1 needs root: install sudo, or run make as root"
  sudo true || die "$1 needs root, and sudo refused it: run make as root"
}

# step TEXT COMMAND...: runs COMMAND, showing TEXT and the seconds gone; its output only if it fails.
step() {
  local text=$1 log ticker status=0 start=$SECONDS
  shift
  log=$(mktemp)
  tick "$text" & ticker=$!
  "$@" >"$log" 2>&1 || status=$?
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  [ -t 2 ] && printf '\r' >&2
  printf '%s: %s, %d s\n' "$text" "$([ "$status" = 0 ] && echo done || echo FAILED)" $((SECONDS - start)) >&2
  [ "$status" = 0 ] || tail -n 15 "$log" >&2
  rm -f "$log"
  return "$status"
}

# tick TEXT: on a terminal one line that counts the seconds, elsewhere a line at times.
tick() {
  local second=0
  printf '%s ...' "$1" >&2
  [ -t 2 ] || echo >&2
  while sleep 1 && kill -0 $$ 2>/dev/null; do
    second=$((second + 1))
    if [ -t 2 ]; then
      printf '\r%s ... %d s' "$1" "$second" >&2
    elif [ $((second % 15)) = 0 ]; then
      printf '%s ... %d s\n' "$1" "$second" >&2
    fi
  done
}
