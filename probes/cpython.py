"""Find a process's CPython interpreter and where in memory its stacks lie.

Everything is read from outside: the mapped ELF files give `_PyRuntime`, a
table (3.10 to 3.12) or the interpreter's own `_Py_DebugOffsets` (from 3.13)
gives the offsets, and both are believed only after a walk from the runtime to
a thread of the process. The process is never stopped, and may be hostile:
every loop and length is bounded.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from types import TracebackType
from typing import Protocol, Self

from probes import proc
from probes.elf import ElfError, ElfFile, ProbePoint, Segment, Symbol, probe_offset
from probes.rootfs import open_passive

NONE = 0xFFFFFFFF
"""In a layout: there is no such step."""

SHIM_FILE = "<shim>"
"""co_filename of the frames that CPython 3.12 on puts between C and Python;
they stand for no Python code."""

MAX_MAPPINGS = 1 << 16
MAX_FILES = 1024
MAX_CACHED_FILES = 512
MAX_INTERPRETERS = 64
MAX_THREADS = 4096
MAX_OFFSET = 1 << 20

_RUNTIME = "_PyRuntime"
_CODE_TYPE = "PyCode_Type"
_EVAL_CODE = "PyEval_EvalCode"
_VERSION = "Py_Version"
_SYMBOLS = (_RUNTIME, _CODE_TYPE, _EVAL_CODE, _VERSION)

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, part of the kernel's interface
_USER_ADDRESSES = range(0x1000, 1 << 47)
_POINTER_TAGS = 7  # a _PyStackRef (3.14) keeps flags in a pointer's low bits
_ATTEMPTS = 5  # a running process changes between two reads
_ATTEMPT_PAUSE_S = 0.001


class CPythonLayout(ctypes.Structure):
    """PythonLayout as the kernel side reads it."""

    _fields_ = (
        ("runtime", ctypes.c_uint64),
        ("code_type", ctypes.c_uint64),
        ("pidns_dev", ctypes.c_uint64),
        ("pidns_ino", ctypes.c_uint64),
        ("runtime_interpreters_head", ctypes.c_uint32),
        ("interpreter_next", ctypes.c_uint32),
        ("interpreter_threads_head", ctypes.c_uint32),
        ("thread_next", ctypes.c_uint32),
        ("thread_native_id", ctypes.c_uint32),
        ("thread_native_id_indirect", ctypes.c_uint32),
        ("thread_frame", ctypes.c_uint32),
        ("cframe_current_frame", ctypes.c_uint32),
        ("frame_previous", ctypes.c_uint32),
        ("frame_code", ctypes.c_uint32),
        ("object_type", ctypes.c_uint32),
        ("code_filename", ctypes.c_uint32),
        ("code_name", ctypes.c_uint32),
        ("code_first_line", ctypes.c_uint32),
        ("string_length", ctypes.c_uint32),
        ("string_state", ctypes.c_uint32),
        ("string_ascii_data", ctypes.c_uint32),
        ("string_compact_data", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonLayout:
    """Where an interpreter keeps its stacks: addresses in the process, then
    offsets in bytes.

    `pidns_dev` and `pidns_ino` are the process's PID namespace as
    bpf_get_ns_current_pid_tgid takes it, both 0 for the initial one.
    `thread_native_id` holds the tid itself where `thread_native_id_indirect`
    is NONE; else it holds a pointer (pthread_t), and the tid lies at
    `thread_native_id_indirect` behind that. `thread_frame` leads to the
    innermost frame where `cframe_current_frame` is NONE; else to a _PyCFrame.
    `code_name` is co_qualname, on 3.10 co_name. `version` is 0x030b for 3.11.
    """

    runtime: int = 0
    code_type: int = 0
    pidns_dev: int = 0
    pidns_ino: int = 0
    runtime_interpreters_head: int
    interpreter_next: int
    interpreter_threads_head: int
    thread_next: int
    thread_native_id: int
    thread_native_id_indirect: int = NONE
    thread_frame: int
    cframe_current_frame: int = NONE
    frame_previous: int
    frame_code: int
    object_type: int
    code_filename: int
    code_name: int
    code_first_line: int
    string_length: int
    string_state: int
    string_ascii_data: int
    string_compact_data: int
    version: int

    def pack(self) -> bytes:
        """The bytes of a CPythonLayout."""
        return bytes(CPythonLayout(**{f.name: getattr(self, f.name) for f in fields(self)}))


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """A file as it was when it was read."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class PythonImage:
    """The file that holds a process's interpreter.

    `path` is what /proc/PID/maps says, for display. `open_path` leads to
    exactly the mapped file while the process lives, whatever its namespaces.
    `eval_code` is where to probe PyEval_EvalCode.
    """

    path: str
    open_path: str
    identity: FileIdentity
    load_bias: int
    eval_code: ProbePoint | None


@dataclass(frozen=True, slots=True)
class Interpreter(PythonImage):
    """A running interpreter whose layout was verified.

    `version` is (major, minor, micro), or (major, minor) where the micro
    release is unknown; `runtime` and `code_type` are addresses of
    `_PyRuntime` and `PyCode_Type` in the process.
    """

    version: tuple[int, ...]
    runtime: int
    code_type: int
    layout: PythonLayout


@dataclass(frozen=True, slots=True)
class NoPython:
    """The process runs no CPython, or has ended."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotInitialised:
    """The interpreter is still starting: ask again."""

    reason: str
    image: PythonImage


@dataclass(frozen=True, slots=True)
class UnknownLayout:
    """There is a CPython, but its stacks can't be read this way."""

    reason: str
    image: PythonImage


Finding = Interpreter | NoPython | NotInitialised | UnknownLayout


class UnreadableError(Exception):
    """Memory of the process that can't be read."""


class _NotInitialisedError(Exception):
    """The interpreter is still starting."""


class _UnknownLayoutError(Exception):
    """The layout isn't known, or isn't what it was taken for."""


class ReadableMemory(Protocol):
    """Something that holds bytes at addresses."""

    def read(self, address: int, count: int) -> bytes:
        """`count` bytes at `address`; UnreadableError where they aren't there."""


class ProcessMemory:
    """The memory of a process, read through /proc/PID/mem."""

    def __init__(self, pid: int) -> None:
        self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def read(self, address: int, count: int) -> bytes:
        """`count` bytes at `address`; UnreadableError where they aren't there."""
        if address not in _USER_ADDRESSES:
            raise UnreadableError(f"{address:#x} is no address")
        try:
            data = os.pread(self._fd, count, address)
        except OSError as error:
            raise UnreadableError(f"{address:#x}: {error.strerror}") from error
        if len(data) != count:
            raise UnreadableError(f"{address:#x}: cut short")
        return data

    def u32(self, address: int) -> int:
        """The 32-bit word at `address`."""
        return int.from_bytes(self.read(address, 4), "little")

    def u64(self, address: int) -> int:
        """The 64-bit word at `address`."""
        return int.from_bytes(self.read(address, 8), "little")


def find_interpreter(pid: int) -> Finding:
    """Find the CPython interpreter of a process, or say why there is none.

    Needs the rights to read the process's memory and its map_files (root);
    PermissionError without them.
    """
    try:
        images = _load_images(pid)
        if not images:
            return NoPython("no mapped file holds CPython")
        with ProcessMemory(pid) as memory:
            return _examine_all(pid, memory, images)
    except (FileNotFoundError, ProcessLookupError):
        return NoPython("the process has ended")


@dataclass(frozen=True, slots=True)
class PythonFile:
    """What a file alone tells of the CPython in it.

    `layout` is unproven, and its `runtime` and `code_type` are distances from
    the probed instruction (modulo 2**64): whoever stands there knows them.
    """

    identity: FileIdentity
    eval_code: ProbePoint
    layout: PythonLayout


def inspect_file(path: str) -> PythonFile | None:
    """The CPython in a file, before a process runs it; None where there is
    none that is known. Raises OSError where it can't be opened, or is no file."""
    fd = open_passive(path)
    try:
        analysis = _analyse(fd, is_likely=True)
        if analysis is None or analysis.eval_code is None:
            return None
        symbols, elf = analysis.symbols, ElfFile.open(fd)
        if not {_RUNTIME, _CODE_TYPE, _EVAL_CODE} <= symbols.keys():
            return None
        _, template = _template(_FileMemory(elf), symbols[_RUNTIME].address, analysis.version, path)
        entry = symbols[_EVAL_CODE].address
        probed = entry + analysis.eval_code.offset - elf.file_offset(entry)
    except (ElfError, UnreadableError, _UnknownLayoutError):
        return None
    finally:
        os.close(fd)
    runtime, code_type = (
        (symbols[name].address - probed) % (1 << 64) for name in (_RUNTIME, _CODE_TYPE)
    )
    layout = replace(template.layout, runtime=runtime, code_type=code_type)
    if not template.has_native_id:
        layout = replace(layout, thread_native_id_indirect=_GLIBC_TID)
    return PythonFile(analysis.identity, analysis.eval_code, layout)


class _FileMemory:
    """The memory of a process that hasn't started, as its file will fill it."""

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf

    def read(self, address: int, count: int) -> bytes:
        try:
            return self._elf.bytes_at(address, count)
        except ElfError as error:
            raise UnreadableError(str(error)) from error


# --- Mapped files -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Mapping:
    """An executable, file-backed line of /proc/PID/maps."""

    start: int
    end: int
    offset: int
    file: tuple[str, str]  # device and inode, as printed
    path: str


@dataclass(frozen=True, slots=True)
class _Analysis:
    """What one ELF file says about the CPython in it."""

    identity: FileIdentity
    segments: tuple[Segment, ...]
    position_independent: bool
    symbols: dict[str, Symbol]
    eval_code: ProbePoint | None
    version: tuple[int, ...]  # of Py_Version; empty where there is none


@dataclass(frozen=True, slots=True)
class _Loaded:
    """An analysed file at its place in a process."""

    analysis: _Analysis
    path: str
    open_path: str
    load_bias: int

    def address(self, name: str) -> int | None:
        symbol = self.analysis.symbols.get(name)
        return symbol.address + self.load_bias if symbol else None

    def image(self) -> PythonImage:
        return PythonImage(
            self.path,
            self.open_path,
            self.analysis.identity,
            self.load_bias,
            self.analysis.eval_code,
        )


_cache: OrderedDict[FileIdentity, _Analysis | None] = OrderedDict()


def _load_images(pid: int) -> list[_Loaded]:
    """The mapped files that define symbols of CPython; the executable, which
    the dynamic linker asks first, comes first."""
    try:
        exe = os.readlink(f"/proc/{pid}/exe")
    except PermissionError:
        raise
    except OSError:
        return []  # a kernel thread, or gone
    mappings = list(_executable_mappings(pid))
    likely = [m for m in mappings if m.path == exe]
    likely += [m for m in mappings if m.path != exe and "python" in os.path.basename(m.path)]
    rest = [m for m in mappings if m not in likely]
    for group in (likely, rest):
        images = [
            image for m in group[:MAX_FILES] if (image := _load(pid, m, m.path == exe)) is not None
        ]
        if images:
            return images
    return []


def _executable_mappings(pid: int) -> Iterator[_Mapping]:
    # newline: a mapped file's name may hold "\r"
    with open(f"/proc/{pid}/maps", errors="surrogateescape", newline="\n") as lines:
        for _, line in zip(range(MAX_MAPPINGS), lines, strict=False):
            parts = line.rstrip("\n").split(maxsplit=5)
            if len(parts) < 6 or "x" not in parts[1] or parts[4] == "0":
                continue
            start, end = (int(address, 16) for address in parts[0].split("-"))
            yield _Mapping(start, end, int(parts[2], 16), (parts[3], parts[4]), parts[5])


def _load(pid: int, mapping: _Mapping, is_exe: bool) -> _Loaded | None:
    # Neither link is followed as a path: both lead to the mapped file itself,
    # in whatever mount namespace, even when it was deleted or replaced.
    open_path = f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}"
    if is_exe:
        open_path = f"/proc/{pid}/exe"
    try:
        fd = os.open(open_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, ProcessLookupError):
        return None  # unmapped since
    try:
        analysis = _analyse(fd, is_likely=is_exe or "python" in os.path.basename(mapping.path))
    finally:
        os.close(fd)
    if analysis is None:
        return None
    bias = _load_bias(analysis, mapping)
    return None if bias is None else _Loaded(analysis, mapping.path, open_path, bias)


def _load_bias(analysis: _Analysis, mapping: _Mapping) -> int | None:
    """What to add to a link-time address, told by where a segment landed."""
    if not analysis.position_independent:
        return 0
    for segment in analysis.segments:
        skipped = mapping.offset - segment.offset
        if segment.executable and -0x1000 < skipped < segment.file_size:
            return mapping.start - skipped - segment.address
    return None


def _analyse(fd: int, is_likely: bool) -> _Analysis | None:
    """What the file says about CPython, None where it holds none."""
    status = os.fstat(fd)
    identity = FileIdentity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if identity in _cache:
        _cache.move_to_end(identity)
        return _cache[identity]
    try:
        analysis = _read_elf(fd, identity, is_likely)
    except ElfError:
        analysis = None
    _cache[identity] = analysis
    if len(_cache) > MAX_CACHED_FILES:
        _cache.popitem(last=False)
    return analysis


def _read_elf(fd: int, identity: FileIdentity, is_likely: bool) -> _Analysis | None:
    elf = ElfFile.open(fd)
    # Only a likely file's .symtab is read: it can be huge, and costs time.
    symbols = elf.symbols(_SYMBOLS) if is_likely else elf.exported(_SYMBOLS)
    if not symbols.keys() & {_RUNTIME, _EVAL_CODE, _CODE_TYPE}:
        return None
    eval_code = symbols.get(_EVAL_CODE)
    return _Analysis(
        identity=identity,
        segments=elf.load_segments,
        position_independent=elf.is_pie,
        symbols=symbols,
        eval_code=probe_offset(elf, eval_code) if eval_code else None,
        version=_linked_version(elf, symbols.get(_VERSION)),
    )


def _linked_version(elf: ElfFile, symbol: Symbol | None) -> tuple[int, ...]:
    if symbol is None:
        return ()
    return _version_of_hex(int.from_bytes(elf.bytes_at(symbol.address, 4), "little"))


def _version_of_hex(word: int) -> tuple[int, ...]:
    """PY_VERSION_HEX as (major, minor, micro)."""
    return (word >> 24 & 0xFF, word >> 16 & 0xFF, word >> 8 & 0xFF)


# --- From a file to a verified layout ---------------------------------------


def _examine_all(pid: int, memory: ProcessMemory, images: list[_Loaded]) -> Finding:
    """The first interpreter that runs; else the most telling reason."""
    reasons = []
    for loaded in images:
        if loaded.address(_RUNTIME) is None:
            continue
        found = _examine(pid, memory, loaded, images)
        if isinstance(found, Interpreter):
            return found
        reasons.append(found)
    unknown = [reason for reason in reasons if isinstance(reason, UnknownLayout)]
    if unknown or reasons:
        return (unknown or reasons)[0]
    return UnknownLayout("it has no _PyRuntime (older than 3.7?)", images[0].image())


def _examine(pid: int, memory: ProcessMemory, loaded: _Loaded, images: list[_Loaded]) -> Finding:
    # An executable that links libpython may hold copies of its data, so each
    # symbol comes from the runtime's own file first, then from any other.
    ordered = [loaded, *(image for image in images if image is not loaded)]
    code_types = [a for image in ordered if (a := image.address(_CODE_TYPE)) is not None]
    holder = next((image for image in ordered if image.analysis.eval_code), loaded)
    image = holder.image()
    runtime = loaded.address(_RUNTIME)
    assert runtime is not None
    linked = next((i.analysis.version for i in ordered if i.analysis.version), ())
    try:
        version, template = _template(memory, runtime, linked, image.path)
        layout = _verified(pid, memory, replace(template.layout, runtime=runtime), template,
                           code_types)  # fmt: skip
    except (_NotInitialisedError, UnreadableError) as error:
        return NotInitialised(str(error), image)
    except _UnknownLayoutError as error:
        return UnknownLayout(str(error), image)
    device, inode = _pid_namespace(pid)
    layout = replace(layout, pidns_dev=device, pidns_ino=inode)
    return Interpreter(
        image.path, image.open_path, image.identity, image.load_bias, image.eval_code,
        version, runtime, layout.code_type, layout,
    )  # fmt: skip


def _pid_namespace(pid: int) -> tuple[int, int]:
    """Device and inode of the PID namespace, (0, 0) for the initial one."""
    status = os.stat(f"/proc/{pid}/ns/pid")
    if status.st_ino == _INITIAL_PID_NAMESPACE:
        return 0, 0
    # The kernel compares its own dev_t: 12 bits of major, 20 of minor.
    return os.major(status.st_dev) << 20 | os.minor(status.st_dev), status.st_ino


@dataclass(frozen=True, slots=True)
class _Template:
    """A version's offsets; `thread_id` is where a thread state keeps its
    pthread_t. `has_native_id` is False where it keeps no tid (3.10)."""

    layout: PythonLayout
    thread_id: int
    has_native_id: bool = True


_STRING_3_10 = {
    "string_length": 16,
    "string_state": 32,
    "string_ascii_data": 48,
    "string_compact_data": 72,
}
_STRING_3_12 = _STRING_3_10 | {"string_ascii_data": 40, "string_compact_data": 56}

# Told by offsetof() on each version's headers; release builds.
_TEMPLATES = {
    (3, 10): _Template(
        PythonLayout(
            runtime_interpreters_head=32,
            interpreter_next=0,
            interpreter_threads_head=8,
            thread_next=8,
            thread_native_id=176,
            thread_frame=24,
            frame_previous=24,
            frame_code=32,
            object_type=8,
            code_filename=104,
            code_name=112,
            code_first_line=40,
            version=0x030A,
            **_STRING_3_10,
        ),
        thread_id=176,
        has_native_id=False,
    ),
    (3, 11): _Template(
        PythonLayout(
            runtime_interpreters_head=40,
            interpreter_next=0,
            interpreter_threads_head=16,
            thread_next=8,
            thread_native_id=160,
            thread_frame=56,
            cframe_current_frame=8,
            frame_previous=48,
            frame_code=32,
            object_type=8,
            code_filename=112,
            code_name=128,
            code_first_line=72,
            version=0x030B,
            **_STRING_3_10,
        ),
        thread_id=152,
    ),
    (3, 12): _Template(
        PythonLayout(
            runtime_interpreters_head=40,
            interpreter_next=0,
            interpreter_threads_head=72,
            thread_next=8,
            thread_native_id=144,
            thread_frame=56,
            cframe_current_frame=0,
            frame_previous=8,
            frame_code=0,
            object_type=8,
            code_filename=112,
            code_name=128,
            code_first_line=68,
            version=0x030C,
            **_STRING_3_12,
        ),
        thread_id=136,
    ),
}


def _template(
    memory: ReadableMemory, runtime: int, linked: tuple[int, ...], path: str
) -> tuple[tuple[int, ...], _Template]:
    """Version and offsets: by the runtime's own word, by Py_Version, by the
    file's name; a file that tells nothing is taken for 3.10, the last release
    without Py_Version, and verified like any other."""
    words = memory.read(runtime, 16)
    if words.startswith(_COOKIE):
        version = _version_of_hex(int.from_bytes(words[8:12], "little"))
        return version, _template_of_debug_offsets(memory, runtime, version)
    named = re.search(r"python(\d)\.(\d+)", os.path.basename(path))
    version = linked or (tuple(int(part) for part in named.groups()) if named else (3, 10))
    template = _TEMPLATES.get((version[0], version[1]))
    if template is None:
        raise _UnknownLayoutError(f"CPython {'.'.join(map(str, version))} isn't among those known")
    return version, template


# --- _Py_DebugOffsets -------------------------------------------------------

_COOKIE = b"xdebugpy"

# The words of _Py_DebugOffsets in order, as far as they are needed.
_DEBUG_OFFSETS_3_13 = {
    "": "cookie version free_threaded",
    "runtime_state": "size finalizing interpreters_head",
    "interpreter_state": "size id next threads_head gc imports_modules sysdict builtins ceval_gil"
    " gil_runtime_state gil_runtime_state_enabled gil_runtime_state_locked"
    " gil_runtime_state_holder",
    "thread_state": "size prev next interp current_frame thread_id native_thread_id"
    " datastack_chunk status",
    "interpreter_frame": "size previous executable instr_ptr localsplus owner",
    "code_object": "size filename name qualname linetable firstlineno argcount localsplusnames"
    " localspluskinds co_code_adaptive",
    "pyobject": "size ob_type",
    "type_object": "size tp_name tp_repr tp_flags",
    "tuple_object": "size ob_item ob_size",
    "list_object": "size ob_item ob_size",
    "dict_object": "size ma_keys ma_values",
    "float_object": "size ob_fval",
    "long_object": "size lv_tag ob_digit",
    "bytes_object": "size ob_size ob_sval",
    "unicode_object": "size state length asciiobject_size",
}
_DEBUG_OFFSETS_3_14 = _DEBUG_OFFSETS_3_13 | {
    "interpreter_state": "size id next threads_head threads_main gc imports_modules sysdict"
    " builtins ceval_gil gil_runtime_state gil_runtime_state_enabled gil_runtime_state_locked"
    " gil_runtime_state_holder code_object_generation tlbc_generation",
    "interpreter_frame": _DEBUG_OFFSETS_3_13["interpreter_frame"] + " stackpointer tlbc_index",
    "code_object": _DEBUG_OFFSETS_3_13["code_object"] + " co_tlbc",
    "list_object": "size ob_item ob_size set.size set.used set.table set.mask",
}
_DEBUG_OFFSETS = {(3, 13): _DEBUG_OFFSETS_3_13, (3, 14): _DEBUG_OFFSETS_3_14}

_COMPACT_HEADER_BYTES = 16  # utf8_length and utf8, between PyASCIIObject and the data


def _template_of_debug_offsets(
    memory: ReadableMemory, runtime: int, version: tuple[int, ...]
) -> _Template:
    groups = _DEBUG_OFFSETS.get((version[0], version[1]))
    if groups is None:
        raise _UnknownLayoutError(f"CPython {'.'.join(map(str, version))} isn't among those known")
    names = [f"{group}.{word}" for group, words in groups.items() for word in words.split()]
    values = struct.unpack(f"<{len(names)}Q", memory.read(runtime, 8 * len(names)))
    offsets: dict[str, int] = dict(zip(names, values, strict=True))
    if offsets[".free_threaded"]:
        raise _UnknownLayoutError("a free-threaded build")

    def at(name: str) -> int:
        if offsets[name] >= MAX_OFFSET:
            raise _UnknownLayoutError(f"its offset {name} is {offsets[name]:#x}")
        return offsets[name]

    layout = PythonLayout(
        runtime_interpreters_head=at("runtime_state.interpreters_head"),
        interpreter_next=at("interpreter_state.next"),
        interpreter_threads_head=at("interpreter_state.threads_head"),
        thread_next=at("thread_state.next"),
        thread_native_id=at("thread_state.native_thread_id"),
        thread_frame=at("thread_state.current_frame"),
        frame_previous=at("interpreter_frame.previous"),
        frame_code=at("interpreter_frame.executable"),
        object_type=at("pyobject.ob_type"),
        code_filename=at("code_object.filename"),
        code_name=at("code_object.qualname"),
        code_first_line=at("code_object.firstlineno"),
        string_length=at("unicode_object.length"),
        string_state=at("unicode_object.state"),
        string_ascii_data=at("unicode_object.asciiobject_size"),
        string_compact_data=at("unicode_object.asciiobject_size") + _COMPACT_HEADER_BYTES,
        version=version[0] << 8 | version[1],
    )
    return _Template(layout, at("thread_state.thread_id"))


# --- Verification -----------------------------------------------------------


def _verified(
    pid: int,
    memory: ProcessMemory,
    layout: PythonLayout,
    template: _Template,
    code_types: list[int],
) -> PythonLayout:
    """The layout, completed and proven on the living process.

    The process runs meanwhile, so a failure counts only when it repeats.
    """
    if not code_types:
        raise _UnknownLayoutError("it doesn't export PyCode_Type")
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_ATTEMPT_PAUSE_S)
        try:
            threads = list(walk_threads(memory, layout))
            found = _with_thread_ids(pid, memory, layout, template, threads)
            return replace(found, code_type=_code_type(memory, found, threads, code_types))
        except (_UnknownLayoutError, UnreadableError) as error:
            failure = str(error)
    memory.read(layout.runtime, 1)  # a process that has ended proves nothing
    raise _UnknownLayoutError(failure)


def walk_threads(memory: ProcessMemory, layout: PythonLayout) -> Iterator[int]:
    """The addresses of all thread states, newest first in each interpreter."""
    interpreter = memory.u64(layout.runtime + layout.runtime_interpreters_head)
    count = 0
    for _ in range(MAX_INTERPRETERS):
        if interpreter == 0:
            return
        thread = memory.u64(interpreter + layout.interpreter_threads_head)
        while thread and count < MAX_THREADS:
            yield thread
            count += 1
            thread = memory.u64(thread + layout.thread_next)
        interpreter = memory.u64(interpreter + layout.interpreter_next)


def thread_native_id(memory: ProcessMemory, layout: PythonLayout, thread: int) -> int:
    """The tid of a thread state, in the process's own PID namespace."""
    if layout.thread_native_id_indirect == NONE:
        return memory.u32(thread + layout.thread_native_id)
    pthread = memory.u64(thread + layout.thread_native_id)
    return memory.u32(pthread + layout.thread_native_id_indirect) if pthread else 0


def walk_codes(
    memory: ProcessMemory, layout: PythonLayout, thread: int, limit: int
) -> Iterator[int]:
    """The objects that a thread's frames execute, innermost first, at most
    `limit`; not all are code objects (3.13 on has None in between)."""
    frame = memory.u64(thread + layout.thread_frame)
    if frame and layout.cframe_current_frame != NONE:
        frame = memory.u64(frame + layout.cframe_current_frame)
    for _ in range(limit):
        if frame == 0:
            return
        yield memory.u64(frame + layout.frame_code) & ~_POINTER_TAGS
        frame = memory.u64(frame + layout.frame_previous)


# struct pthread's tid: in glibc 2.36 to 2.43 on x86-64, else anywhere near.
_GLIBC_TID = 0x2D0
_PTHREAD_SCAN_BYTES = 0x800


def _with_thread_ids(
    pid: int,
    memory: ProcessMemory,
    layout: PythonLayout,
    template: _Template,
    threads: list[int],
) -> PythonLayout:
    """The layout with the way to a thread's tid that holds in this process.

    A child of fork keeps its parent's native_thread_id on some 3.11 builds;
    the C library's own thread struct is right there too.
    """
    if not threads:
        raise _NotInitialisedError("it has no thread yet")
    inner_pid = proc.namespace_pid(pid)
    if inner_pid is None:
        raise ProcessLookupError(pid)
    own = {inner_pid}
    direct = [thread_native_id(memory, layout, thread) for thread in threads]
    if template.has_native_id:
        if own & set(direct):
            return layout
        if not any(direct):
            raise _NotInitialisedError("its threads have no id yet")
    pthreads = [memory.u64(thread + template.thread_id) for thread in threads]
    pthreads = [pthread for pthread in pthreads if pthread]
    if not pthreads:
        raise _NotInitialisedError("its threads have no id yet")
    own |= set(_task_ids(pid))  # an embedding program may run Python off its main thread
    if template.has_native_id and own & set(direct):
        return layout
    indirect = _tid_offset(memory, pthreads, own)
    if indirect is not None:
        return replace(
            layout, thread_native_id=template.thread_id, thread_native_id_indirect=indirect
        )
    if _shares_parents_memory(pid, memory, pthreads):
        raise _NotInitialisedError("between vfork and exec")
    raise _UnknownLayoutError("none of its threads is a thread of the process")


def _tid_offset(memory: ProcessMemory, pthreads: list[int], tids: set[int]) -> int | None:
    """Where in struct pthread the tid lies, None where nothing fits."""
    if all(memory.u32(pthread + _GLIBC_TID) in tids for pthread in pthreads):
        return _GLIBC_TID
    fitting = set(range(0, _PTHREAD_SCAN_BYTES, 4))
    for pthread in pthreads:
        words = memory.read(pthread, _PTHREAD_SCAN_BYTES)
        fitting &= {4 * i for i, (word,) in enumerate(struct.iter_unpack("<I", words))
                    if word in tids}  # fmt: skip
    return fitting.pop() if len(fitting) == 1 else None


def _shares_parents_memory(pid: int, memory: ProcessMemory, pthreads: list[int]) -> bool:
    now = proc.stat(pid)
    parents_ids = set() if now is None else set(_task_ids(now.parent_pid))
    return _tid_offset(memory, pthreads, parents_ids) is not None


def _task_ids(pid: int) -> Iterator[int]:
    """The process's threads, as numbered in its own PID namespace."""
    tasks = proc.PROC / str(pid) / "task"
    for task in proc.threads(pid)[:MAX_THREADS]:
        inner_tid = proc.namespace_pid(task, tasks)
        if inner_tid is not None:  # else that thread has ended
            yield inner_tid


_FRAMES_LOOKED_AT = 16


def _code_type(
    memory: ProcessMemory, layout: PythonLayout, threads: Iterable[int], candidates: list[int]
) -> int:
    """The candidate that the running code objects are of."""
    seen = False
    for thread in threads:
        for code in walk_codes(memory, layout, thread, _FRAMES_LOOKED_AT):
            seen = True
            try:
                kind = memory.u64(code + layout.object_type)
            except UnreadableError:
                continue
            if kind in candidates:
                return kind
    if seen:
        raise _UnknownLayoutError("its frames lead to no code object")
    raise _NotInitialisedError("no thread of it runs Python code yet")


# --- Text -------------------------------------------------------------------

_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
_UNKNOWN_TEXT = "\N{REPLACEMENT CHARACTER}"
_UNIT_FORMATS = {1: "B", 2: "H", 4: "I"}


def decode_text(
    raw: bytes, state: int, length: int, version: tuple[int, int], *, keep_end: bool = False
) -> str:
    """The text of a PyUnicode: the first bytes of its data (the last ones
    where `keep_end`), its state word and its length in characters.

    Text that was cut carries an ellipsis where it was. Lone surrogates come
    out escaped, so the result can always be encoded.
    """
    kind = _kind(state, version)
    if kind not in _UNIT_FORMATS:
        return _UNKNOWN_TEXT
    count = min(len(raw) // kind, length)
    text = raw[:count].decode("latin-1") if kind == 1 else _decode_wide(raw, count, kind)
    if count == length:
        return text
    return _ELLIPSIS + text if keep_end else text + _ELLIPSIS


def _decode_wide(raw: bytes, count: int, kind: int) -> str:
    """Unit by unit: a codec would join surrogates, and refuse what is no character."""
    units = struct.unpack_from(f"<{count}{_UNIT_FORMATS[kind]}", raw)
    text = "".join(chr(unit) if unit <= sys.maxunicode else _UNKNOWN_TEXT for unit in units)
    return text.encode("utf-8", "backslashreplace").decode()


def _kind(state: int, version: tuple[int, int]) -> int:
    """The bytes a character takes, from PyASCIIObject.state.

    They stand behind `interned`, which has 2 bits, but 16 in some releases of
    3.14; it is at most 3 and a kind never 0 there, so a 0 tells them apart.
    """
    kind = state >> 2 & 7
    return kind if kind or version < (3, 14) else state >> 16 & 7
