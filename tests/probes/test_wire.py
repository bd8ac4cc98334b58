"""wire.py against the C header that both sides share."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from probes import cpython, wire

HEADER = Path(wire.__file__).parent / "bpf" / "events.h"
TYPES = HEADER.parent / "headers/include/linux/types.h"

RECORDS = {
    "fork_event": wire.FORK,
    "exec_event": wire.EXEC,
    "exit_event": wire.EXIT,
    "function_event": wire.FUNCTION,
    "module_event": wire.MODULE,
    "file_event": wire.FILE,
    "socket_event": wire.SOCKET,
    "wait_event": wire.WAIT,
    "connect_event": wire.CONNECT,
    "lookup_event": wire.LOOKUP,
}


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_every_record_has_the_size_that_c_gives_it(tmp_path):
    asked = [f"sizeof(struct {name})" for name in RECORDS]
    asked += ["sizeof(struct header)", "offsetof(struct sample_event, keys)"]
    asked += ["sizeof(struct python_layout)", "offsetof(struct python_layout, version)"]
    program = tmp_path / "sizes.c"
    program.write_text(
        f'#include "{TYPES}"\n#include "{HEADER}"\n'
        "#undef offsetof\n#define offsetof(t, m) __builtin_offsetof(t, m)\n"
        "int printf(const char *, ...);\n"
        "int main(void) { "
        + "".join(f'printf("%lu ", (unsigned long){what});' for what in asked)
        + " return 0; }\n"
    )
    binary = tmp_path / "sizes"
    subprocess.run(["cc", "-w", "-o", binary, program], check=True)
    sizes = [int(n) for n in subprocess.run([binary], capture_output=True).stdout.split()]
    head = wire.HEADER.size
    layout = cpython.CPythonLayout
    assert sizes == [
        *(head + record.size for record in RECORDS.values()),
        head,
        head + wire.SAMPLE.size,
        cpython.ctypes.sizeof(layout),
        layout.version.offset,
    ]


def test_kinds_and_limits_are_the_headers():
    text = HEADER.read_text()
    kinds = re.search(r"enum kind \{(.*?)\}", text, re.DOTALL)[1]
    assert re.findall(r"KIND_(\w+)", kinds)[:-1] == [kind.name for kind in wire.Kind]
    for name in ("FILE", "NAME", "PATH", "FILENAME", "ARGV", "ARG", "ADDRESS", "HOST"):
        (value,) = re.findall(rf"#define {name}_BYTES (\d+)", text)
        assert int(value) == getattr(wire, f"{name}_BYTES")
    assert int(re.search(r"#define MAX_FRAMES (\d+)", text)[1]) == wire.MAX_FRAMES
