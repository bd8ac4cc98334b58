"""The walk of living interpreters against what they say of themselves.

Every CPython from 3.10 on that the machine has is tried. COLDTRACE_TEST_PYTHONS
adds others: shell commands, separated by newlines, that run a Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes import cpython, places
from probes.cpython import (
    NONE,
    CPythonLayout,
    Interpreter,
    NoPython,
    NotInitialised,
    ProcessMemory,
    PythonLayout,
    UnknownLayout,
    decode_text,
    find_interpreter,
    inspect_file,
)
from probes.events import ProcessId
from tests.probes.pythons import STACKS, every_python, told

SLEEP = "import time; print(flush=True); time.sleep(600)"
LOADER = "/lib64/ld-linux-x86-64.so.2"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="reading /proc/PID/map_files needs root")


HERE = [os.path.realpath(sys._base_executable)]


@contextlib.contextmanager
def running(command: list[str], **options: object) -> Iterator[tuple[int, str]]:
    """Run a command; its pid and the first line it printed."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as process:
        try:
            line = process.stdout.readline()
            assert line, f"{command} ended with {process.wait()}"
            yield process.pid, line
        finally:
            process.kill()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def walk(pid: int, found: Interpreter, limit: int = 512) -> dict[int, list[list[object]]]:
    """The stacks of all threads, by tid: [file, name, first line], innermost first."""
    layout = found.layout
    with ProcessMemory(pid) as memory:
        return {
            cpython.thread_native_id(memory, layout, thread): [
                describe(memory, layout, code)
                for code in cpython.walk_codes(memory, layout, thread, limit)
                if memory.u64(code + layout.object_type) == found.code_type
                and text(memory, layout, code + layout.code_filename) != cpython.SHIM_FILE
            ]
            for thread in cpython.walk_threads(memory, layout)
        }


def describe(memory: ProcessMemory, layout: PythonLayout, code: int) -> list[object]:
    file, name = (text(memory, layout, code + o) for o in (layout.code_filename, layout.code_name))
    return [file, name, memory.u32(code + layout.code_first_line)]


def text(memory: ProcessMemory, layout: PythonLayout, pointer: int) -> str:
    """The Python string that the word at `pointer` points to."""
    string = memory.u64(pointer)
    version = (layout.version >> 8, layout.version & 0xFF)
    state = memory.u32(string + layout.string_state)
    length = memory.u64(string + layout.string_length)
    bits = state >> (2 if state >> 2 & 7 else 16)
    is_ascii = bits >> 4 & 1
    start = layout.string_ascii_data if is_ascii else layout.string_compact_data
    return decode_text(memory.read(string + start, length * (bits & 7)), state, length, version)


# --- Living interpreters ----------------------------------------------------


@needs_root
@every_python
def test_the_walk_sees_what_the_program_says_of_itself(python):
    with running([*python, str(STACKS)]) as (pid, line), stopped(pid):
        found = find_interpreter(pid)
        assert isinstance(found, Interpreter), found
        seen = walk(pid, found)
        assert Path(found.open_path).stat().st_ino == found.identity.inode

    assert seen == told(line)
    assert max(map(len, seen.values())) > 300
    assert any("😀" in file for frames in seen.values() for file, _, _ in frames)
    assert any("\\udcff" in file for frames in seen.values() for file, _, _ in frames)


PY_SPY = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@needs_root
@pytest.mark.skipif(PY_SPY is None, reason="no py-spy")
@every_python
def test_the_walk_sees_what_py_spy_sees(python):
    with running([*python, str(STACKS)]) as (pid, _), stopped(pid):
        found = find_interpreter(pid)
        assert isinstance(found, Interpreter), found
        seen = walk(pid, found)
        dump = subprocess.run(
            [PY_SPY, "dump", "--nonblocking", "--json", "--pid", str(pid)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if "Failed to find python version" in dump.stderr or "Unsupported version" in dump.stderr:
        pytest.skip(f"py-spy doesn't know it: {dump.stderr.strip().splitlines()[0]}")
    assert dump.returncode == 0, dump.stderr

    # py-spy gives no first lines, no thread ids on 3.10, and leaves out frames
    # of a file whose name isn't Unicode.
    theirs = [
        [(frame["filename"], frame["name"]) for frame in thread["frames"]]
        for thread in json.loads(dump.stdout)
    ]
    ours = [
        [(file, name) for file, name, _ in frames if "not utf-8" not in file]
        for frames in seen.values()
    ]
    assert sorted(theirs) == sorted(ours)


@needs_root
@every_python
def test_version_and_bias_are_right(python):
    program = (
        "import ctypes, sys, time; "
        "at = lambda n: ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, n)); "
        "print(*sys.version_info[:3], at('_PyRuntime'), at('PyCode_Type'), flush=True); "
        "time.sleep(600)"
    )
    with running([*python, "-c", program]) as (pid, line):
        found = find_interpreter(pid)
    *version, runtime, code_type = map(int, line.split())

    assert isinstance(found, Interpreter), found
    assert found.version in (tuple(version), tuple(version[:2]))
    assert (found.runtime, found.code_type) == (runtime, code_type)
    assert found.layout.version == version[0] << 8 | version[1]
    assert found.eval_code is not None


@needs_root
@every_python
def test_a_starting_interpreter_is_never_taken_for_an_unknown_one(python):
    kinds = []
    for _ in range(3):
        program = "import json, email.parser, threading"
        with subprocess.Popen([*python, "-c", program]) as process:
            while process.poll() is None:
                kinds.append(type(find_interpreter(process.pid)))

    assert set(kinds) <= {NoPython, NotInitialised, Interpreter}
    assert Interpreter in kinds


@needs_root
@every_python
def test_a_forked_child_has_its_own_ids(python):
    program = f"import os; os.fork() and os.wait(); print(os.getpid(), flush=True); {SLEEP}"
    with running([*python, "-c", program]) as (_, line):
        child = int(line)
        found = find_interpreter(child)
        try:
            assert isinstance(found, Interpreter), found
            assert walk(child, found).keys() == {child}
        finally:
            os.kill(child, signal.SIGKILL)


@needs_root
@every_python
def test_a_stale_native_id_is_told_by_the_c_library(python):
    # As early releases of 3.11 leave it in a child of fork.
    with running([*python, "-c", SLEEP]) as (pid, _):
        found = find_interpreter(pid)
        assert isinstance(found, Interpreter), found
        if found.layout.thread_native_id_indirect == NONE:
            with ProcessMemory(pid) as memory:
                (thread,) = cpython.walk_threads(memory, found.layout)
            with open(f"/proc/{pid}/mem", "r+b", buffering=0) as writable:
                writable.seek(thread + found.layout.thread_native_id)
                writable.write(struct.pack("<Q", 1))
        again = find_interpreter(pid)
        assert isinstance(again, Interpreter), again
        assert again.layout.thread_native_id_indirect != NONE
        assert walk(pid, again).keys() == {pid}


# A process that shares its parent's memory, as between vfork and exec.
SHARING = """
import ctypes, time
libc = ctypes.CDLL(None)
stack = ctypes.create_string_buffer(1 << 16)
top = (ctypes.addressof(stack) + len(stack) - 64) & ~15
CLONE_VM, SIGCHLD = 0x100, 17
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
print(libc.clone(pause, ctypes.c_void_p(top), CLONE_VM | SIGCHLD, None), flush=True)
time.sleep(600)
"""


@needs_root
@every_python
def test_a_child_of_vfork_has_no_interpreter_of_its_own(python):
    with running([*python, "-c", SHARING]) as (pid, line):
        child = int(line)
        found = find_interpreter(child)
        os.kill(child, signal.SIGKILL)
        assert isinstance(find_interpreter(pid), Interpreter)
    assert isinstance(found, NotInitialised), found
    assert "vfork" in found.reason


@needs_root
def test_an_idle_libpython_beside_the_interpreter_is_no_hindrance():
    name = ctypes.util.find_library(f"python{VERSION}")
    if name is None:
        pytest.skip(f"no shared libpython{VERSION}")
    with running([*HERE, "-c", f"import ctypes; ctypes.CDLL({name!r}); {SLEEP}"]) as (pid, _):
        assert name in Path(f"/proc/{pid}/maps").read_text()
        found = find_interpreter(pid)
        assert isinstance(found, Interpreter), found
        assert walk(pid, found) == {pid: [["<string>", "<module>", 1]]}


@needs_root
@every_python
def test_an_interpreter_started_through_the_dynamic_linker(python):
    if not Path(LOADER).exists() or not is_elf(python):
        pytest.skip(f"needs {LOADER} and a Python that is a plain executable")
    with running([LOADER, *python, "-c", SLEEP]) as (pid, _):
        assert "ld-linux" in os.readlink(f"/proc/{pid}/exe")
        found = find_interpreter(pid)
        assert isinstance(found, Interpreter), found
        assert walk(pid, found) == {pid: [["<string>", "<module>", 1]]}


@needs_root
@every_python
def test_an_executable_that_was_replaced_is_read_as_it_was(python, tmp_path):
    if not is_elf(python):
        pytest.skip("needs a Python that is a plain executable")
    copy = Path(shutil.copy(python[0], tmp_path / "python"))
    prefix = subprocess.run(
        [*python, "-c", "import sys; print(sys.base_prefix)"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    environment = {**os.environ, "PYTHONHOME": prefix}
    with running([str(copy), "-c", SLEEP], env=environment) as (pid, _):
        copy.unlink()
        copy.write_bytes(b"\x7fELF" + bytes(4096))
        found = find_interpreter(pid)
        assert isinstance(found, Interpreter), found
        assert walk(pid, found) == {pid: [["<string>", "<module>", 1]]}


@needs_root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare(1)")
@every_python
def test_another_pid_namespace(python):
    command = ["unshare", "--pid", "--fork", "--kill-child", *python, str(STACKS)]
    with running(command) as (outer, line):
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text()
        pid = int(children.split()[0])
        found = find_interpreter(pid)
        assert isinstance(found, Interpreter), found
        seen = walk(pid, found)
        namespace = os.stat(f"/proc/{pid}/ns/pid")

    assert 1 in seen  # the main thread, as numbered inside
    assert seen == told(line)
    assert found.layout.pidns_ino == namespace.st_ino
    assert found.layout.pidns_dev == os.makedev(0, os.minor(namespace.st_dev))


def is_elf(python: list[str]) -> bool:
    return len(python) == 1 and Path(python[0]).read_bytes()[:4] == b"\x7fELF"


# --- Programs that embed Python ---------------------------------------------

EMBEDDING = r"""
#include <Python.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
  /* In a non-PIE executable this address is a copy's of its own. */
  fprintf(stderr, "%p\n", (void *)&PyCode_Type);
  if (argc > 1) Py_Initialize();
  else puts("not initialised"), fflush(stdout), pause();
  return PyRun_SimpleString("import time; print(flush=True); time.sleep(600)");
}
"""


def embedding(folder: Path, *how: str) -> str:
    """Compile EMBEDDING against this interpreter's headers; its path."""
    compiler = shutil.which("cc")
    include = sysconfig.get_path("include")
    if compiler is None or not Path(include, "Python.h").exists():
        pytest.skip("needs a C compiler and Python's headers")
    source, program = folder / "embedding.c", folder / "embedding"
    source.write_text(EMBEDDING)
    built = subprocess.run(
        [compiler, f"-I{include}", str(source), "-o", str(program), *how],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if built.returncode:
        pytest.skip(f"can't be linked: {built.stderr.strip().splitlines()[-1]}")
    return str(program)


SHARED = [f"-lpython{VERSION}"]
LIBPL = sysconfig.get_config_var("LIBPL") or ""
LIBS = [*(sysconfig.get_config_var("LIBS") or "").split(), "-lm", "-lz", "-lexpat"]
# Debian 13's libpython3.13.a lacks the objects of one hash module, which nothing here calls.
LIBS.append("-Wl,--unresolved-symbols=ignore-all")
HIDDEN = f"-Wl,--version-script={Path(__file__).parent / 'data' / 'hidden.map'}"
"""Python's symbols are in .symtab alone."""


@needs_root
@pytest.mark.parametrize(
    "how",
    [
        ["-fPIE", "-pie", *SHARED],
        ["-fno-pie", "-no-pie", *SHARED],
        ["-fPIE", "-pie", f"{LIBPL}/libpython{VERSION}-pic.a", *LIBS, "-rdynamic"],
        ["-fno-pie", "-no-pie", f"{LIBPL}/libpython{VERSION}.a", *LIBS, "-rdynamic"],
        ["-fPIE", "-pie", f"{LIBPL}/libpython{VERSION}-pic.a", *LIBS, "-rdynamic", HIDDEN],
    ],
    ids=["shared-pie", "shared", "static-pie", "static", "static-pie-symtab"],
)
def test_a_program_that_embeds_python(tmp_path, how):
    program = embedding(tmp_path, *how)
    with running([program]) as (pid, line):
        assert line == "not initialised\n"
        found = find_interpreter(pid)
        assert isinstance(found, NotInitialised), found
        assert found.image.eval_code is not None
    with running([program, "initialise"]) as (pid, _):
        found = find_interpreter(pid)
        assert isinstance(found, Interpreter), found
        assert walk(pid, found) == {pid: [["<string>", "<module>", 1]]}


# --- What is no interpreter to walk -----------------------------------------


@needs_root
def test_a_program_without_python():
    with subprocess.Popen(["sleep", "60"]) as process:
        found = find_interpreter(process.pid)
        process.kill()
    assert isinstance(found, NoPython)


@needs_root
@pytest.mark.parametrize("name", [b"\rNSpid: x", b"\x0bNSpid: x"])
def test_what_a_process_calls_itself_is_no_line_of_its_status(name):
    program = f"import ctypes; ctypes.CDLL(None).prctl(15, {name!r}); {SLEEP}"
    with running([*HERE, "-c", program]) as (pid, _):
        assert isinstance(find_interpreter(pid), Interpreter)


@needs_root
def test_the_name_of_a_mapped_file_is_no_mapping(tmp_path):
    file = tmp_path / "code\rzz-zz r-xp 0 0 1 y"
    file.write_bytes(bytes(4096))
    program = (
        "import mmap, sys\nwith open(sys.argv[1], 'rb') as file:\n"
        f" mapped = mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_EXEC)\n{SLEEP}"
    )
    with running([*HERE, "-c", program, str(file)]) as (pid, _):
        assert isinstance(find_interpreter(pid), Interpreter)
        assert places.c_library(pid) is not None
        places.MappedCode().name(ProcessId(pid, 0), 1)  # reads all mappings


@needs_root
def test_a_process_that_has_ended():
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert isinstance(find_interpreter(process.pid), NoPython)


@needs_root
def test_a_zombie():
    with subprocess.Popen([*HERE, "-c", ""]) as process:
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.001)
        assert isinstance(find_interpreter(process.pid), NoPython)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/null")])
def test_what_is_no_file_is_not_opened(tmp_path, make):
    make(tmp_path / "python3")
    with pytest.raises(OSError, match="neither a regular file"):
        inspect_file(str(tmp_path / "python3"))


@needs_root
@every_python
def test_a_version_that_is_not_known(python, monkeypatch):
    monkeypatch.setattr(cpython, "_TEMPLATES", {})
    monkeypatch.setattr(cpython, "_DEBUG_OFFSETS", {})
    with running([*python, "-c", SLEEP]) as (pid, _):
        found = find_interpreter(pid)
    assert isinstance(found, UnknownLayout)
    assert "isn't among those known" in found.reason


@needs_root
@every_python
@pytest.mark.parametrize(
    ("field", "shift"),
    [("interpreter_threads_head", 40), ("thread_frame", 8), ("frame_code", 8), ("object_type", 8)],
)
def test_a_wrong_offset_is_never_believed(python, field, shift, monkeypatch):
    """A build whose structures differ (Py_DEBUG, a patch) must fall back."""
    original = cpython._template

    def shifted(*arguments):
        version, template = original(*arguments)
        wrong = getattr(template.layout, field) + shift
        layout = cpython.replace(template.layout, **{field: wrong})
        return version, cpython.replace(template, layout=layout)

    monkeypatch.setattr(cpython, "_template", shifted)
    program = (
        "def f(n):\n if n: f(n - 1)\n else:\n  import time; print(flush=True); time.sleep(99)\nf(9)"
    )
    with running([*python, "-c", program]) as (pid, _):
        found = find_interpreter(pid)
    assert not isinstance(found, Interpreter)


@needs_root
def test_a_file_is_analysed_once(monkeypatch):
    monkeypatch.setattr(cpython, "_cache", type(cpython._cache)())
    read = []
    original = cpython._read_elf
    monkeypatch.setattr(cpython, "_read_elf", lambda *a: read.append(a) or original(*a))
    with running([*HERE, "-c", SLEEP]) as (pid, _):
        first, second = find_interpreter(pid), find_interpreter(pid)

    assert first == second
    assert len(read) == len({identity for _, identity, _ in read})


def test_the_cache_is_bounded(monkeypatch, tmp_path):
    monkeypatch.setattr(cpython, "_cache", type(cpython._cache)())
    monkeypatch.setattr(cpython, "MAX_CACHED_FILES", 3)
    for number in range(5):
        (tmp_path / str(number)).write_text("text")
        fd = os.open(tmp_path / str(number), os.O_RDONLY)
        assert cpython._analyse(fd, is_likely=True) is None
        os.close(fd)
    assert len(cpython._cache) == 3


# --- Hostile memory ---------------------------------------------------------

LAYOUT = cpython._TEMPLATES[3, 11].layout


class LoopingMemory(ProcessMemory):
    """Every pointer leads to the same place."""

    def __init__(self, pointer: int = 0x5000) -> None:
        self._pointer = pointer

    def read(self, address: int, count: int) -> bytes:
        return struct.pack("<Q", self._pointer)[:count].ljust(count, b"\0")


def test_lists_that_loop_end():
    memory = LoopingMemory()
    assert len(list(cpython.walk_threads(memory, LAYOUT))) == cpython.MAX_THREADS
    assert len(list(cpython.walk_codes(memory, LAYOUT, 0x5000, 100))) == 100


def test_the_flags_in_a_stack_reference_are_no_part_of_its_address():
    codes = cpython.walk_codes(LoopingMemory(0x5003), LAYOUT, 0x5000, 1)
    assert list(codes) == [0x5000]


class DebugOffsets(ProcessMemory):
    """A runtime that starts with _Py_DebugOffsets, whose words are given."""

    def __init__(self, version: int, **words: int) -> None:
        groups = cpython._DEBUG_OFFSETS[3, 13].items()
        names = [f"{group}_{word}" for group, text in groups for word in text.split()]
        assert words.keys() <= set(names)
        values = [words.get(name, 8) for name in names[2:]]
        self._content = struct.pack(f"<8sQ{len(values)}Q", b"xdebugpy", version, *values)

    def read(self, address: int, count: int) -> bytes:
        return self._content[address : address + count]


def test_debug_offsets_are_read_by_name():
    memory = DebugOffsets(
        0x030D02F0,
        _free_threaded=0,
        thread_state_current_frame=72,
        unicode_object_asciiobject_size=40,
    )
    version, template = cpython._template(memory, 0, (), "python")

    assert version == (3, 13, 2)
    assert template.layout.thread_frame == 72
    assert template.layout.string_compact_data == 56
    assert template.layout.version == 0x030D


@pytest.mark.parametrize(
    ("version", "words", "reason"),
    [
        (0x030F00F0, {}, "3.15.0 isn't among those known"),
        (0x030D00F0, {"_free_threaded": 1}, "free-threaded"),
        (0x030D00F0, {"_free_threaded": 0, "thread_state_next": 1 << 20}, "thread_state.next"),
    ],
)
def test_debug_offsets_that_cannot_be_used(version, words, reason):
    with pytest.raises(cpython._UnknownLayoutError, match=reason):
        cpython._template(DebugOffsets(version, **words), 0, (), "python")


@pytest.mark.parametrize(
    ("linked", "path", "version"),
    [
        ((3, 11, 7), "/usr/lib/libpython3.12.so.1.0", (3, 11, 7)),
        ((), "/usr/bin/python3.10", (3, 10)),
        ((), "/usr/lib/libpython3.10.so.1.0 (deleted)", (3, 10)),
        ((), "/opt/app/embedding", (3, 10)),
    ],
)
def test_version_by_symbol_then_by_name(linked, path, version):
    found, template = cpython._template(LoopingMemory(), 0, linked, path)
    assert found == version
    assert template is cpython._TEMPLATES[version[:2]]


def test_no_address_is_out_of_reach_without_an_error():
    with ProcessMemory(os.getpid()) as memory:
        for address in (0, 8, 1 << 47, 2**64 - 1, 1 << 70, -8):
            with pytest.raises(cpython.UnreadableError):
                memory.u64(address)


# --- Pure -------------------------------------------------------------------


def test_a_layout_packs_as_the_kernel_reads_it():
    names = [name for name, *_ in CPythonLayout._fields_]
    values = {name: number for number, name in enumerate(names[:-1], start=1)}

    assert PythonLayout(**values).pack() == struct.pack("<4Q20I", *values.values(), 0)
    assert ctypes.sizeof(CPythonLayout) == 112


def state(kind: int, *, shift: int = 2, interned: int = 1) -> int:
    return interned | kind << shift | 1 << shift + 3


@pytest.mark.parametrize(
    ("raw", "kind", "length", "text"),
    [
        (b"load_weights", 1, 12, "load_weights"),
        ("café".encode("latin-1"), 1, 4, "café"),
        ("函数".encode("utf-16-le"), 2, 2, "函数"),
        ("𠀀😀".encode("utf-32-le"), 4, 2, "𠀀😀"),
        (b"", 1, 0, ""),
        (b"padded\0\0\0\0", 1, 6, "padded"),
        (b"truncat", 1, 9, "truncat…"),
        ("函数".encode("utf-16-le") + b"\x01", 2, 9, "函数…"),
        (b"", 2, 5, "…"),
        (b"x" * 8, 1, 1 << 63, "xxxxxxxx…"),
        (b"\xff\xdc", 2, 1, "\\udcff"),  # a file name that isn't UTF-8
        (b"\x3d\xd8\x00\xde", 2, 2, "\\ud83d\\ude00"),
        (b"\xff\xff\xff\xff", 4, 1, "\N{REPLACEMENT CHARACTER}"),
        (b"\x1b[31m", 1, 5, "\x1b[31m"),
        (b"legacy", 0, 6, "\N{REPLACEMENT CHARACTER}"),
        (b"impossible", 3, 6, "\N{REPLACEMENT CHARACTER}"),
    ],
)
@pytest.mark.parametrize("version", [(3, 10), (3, 11), (3, 12), (3, 13), (3, 14)])
def test_text_of_every_width(raw, kind, length, text, version):
    assert decode_text(raw, state(kind), length, version) == text


def test_cut_text_may_be_its_end():
    assert decode_text(b"tail", state(1), 9, (3, 13), keep_end=True) == "…tail"
    assert decode_text(b"tail", state(1), 4, (3, 13), keep_end=True) == "tail"


@pytest.mark.parametrize("interned", range(4))
@pytest.mark.parametrize("shift", [2, 16])
def test_both_shapes_of_the_3_14_state_word(shift, interned):
    word = state(2, shift=shift, interned=interned)
    assert decode_text("函数".encode("utf-16-le"), word, 2, (3, 14)) == "函数"
