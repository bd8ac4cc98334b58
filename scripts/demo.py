"""Trace one real start of the demo's vLLM, ask the server one thing, and stop it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

COLDTRACE = ".venv/bin/coldtrace"
VLLM = ".demo/vllm/bin/vllm"
MODEL = ".demo/model"
TRACE = Path(".demo/demo.coldtrace")
LOG = Path(".demo/vllm.log")
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
READY_TIMEOUT_S = 900

# a proxy of the user's is not for a server on this machine
HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def traced_start(port: int) -> subprocess.Popen[bytes]:
    """Start vLLM under `coldtrace run`: which needs root, the server doesn't."""
    serve = [VLLM, "serve", MODEL, "--host", "127.0.0.1", "--port", str(port)]
    command = [COLDTRACE, "run", "-o", str(TRACE), "--", *serve, "--max-model-len", "1024"]
    print("$", " ".join(command), f"\n(vLLM's own log goes to {LOG})", flush=True)
    if os.geteuid() != 0:
        command = ["sudo", *command]
    with LOG.open("wb") as log:
        return subprocess.Popen(command, stdout=log, env=os.environ | ENVIRONMENT)


def wait_until_ready(start: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if start.poll() is not None:
            sys.exit(f"coldtrace: the server ended with status {start.returncode}; see {LOG}")
        try:
            HTTP.open(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    sys.exit(f"coldtrace: the server wasn't ready after {READY_TIMEOUT_S} s; see {LOG}")


def complete(port: int, prompt: str) -> str:
    """Ask the server for a completion of `prompt`."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 16}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with HTTP.open(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def stop(start: subprocess.Popen[bytes]) -> None:
    """Interrupt the server as its user's Ctrl-C would, and wait until all has ended."""
    for process in psutil.Process(start.pid).children(recursive=True):
        command = process.cmdline()
        if VLLM in command and COLDTRACE not in command:
            process.send_signal(signal.SIGINT)
            break
    start.wait(timeout=60)


def main() -> None:
    TRACE.unlink(missing_ok=True)
    port = free_port()
    start = traced_start(port)
    try:
        wait_until_ready(start, port)
        answer = complete(port, "def main():")
        print(f"One completion from it (random weights make no sense): {answer!r}", flush=True)
    except KeyboardInterrupt:
        sys.exit("coldtrace: interrupted")
    finally:
        if start.poll() is None:
            stop(start)
    print(f"The trace is {TRACE}. Read again, without root:")
    read_again = [COLDTRACE, "analyze", str(TRACE)]
    print("$", " ".join(read_again), flush=True)
    sys.exit(subprocess.run(read_again, check=False).returncode)


if __name__ == "__main__":
    main()
