"""What an ELF file says, and what it may not do to its reader."""

from __future__ import annotations

import ctypes
import os
import random
import struct
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes import elf
from probes.elf import ElfError, ElfFile, ProbePoint, Symbol

BASE = 0x400000
SYMBOLS = {"alpha": (0x40, 8), "beta": (0x48, 16), "_PyRuntime": (0x50, 4096), "β": (0x58, 1)}
PUSH = b"\x55"
ENDBR64 = b"\xf3\x0f\x1e\xfa"


def build(
    symbols: dict[str, tuple[int, int]] = SYMBOLS,
    *,
    code: bytes = b"\x90" * 32,
    hashes: str = "gnu",
    section: int | None = None,
    kind: int = elf.ET_DYN,
) -> bytes:
    """An ELF file: header, code at 0x40, tables behind; one segment over all.

    `hashes` is the kind of hash table that PT_DYNAMIC names ("gnu", "sysv" or
    "" for no PT_DYNAMIC at all), `section` the type of a section header that
    names the symbol table, if any.
    """
    names = sorted(symbols, key=lambda name: elf.gnu_hash(name.encode()) % 2)
    strings = b"\0longer_" + b"\0".join(name.encode() for name in names) + b"\0"
    table = bytes(24)
    for name in names:
        value, size = symbols[name]
        position = strings.index(name.encode() + b"\0")
        table += struct.pack("<IBBHQQ", position, 0x11, 0, 1, BASE + value, size)
    hash_table = {"gnu": gnu_table, "sysv": sysv_table, "": lambda _: b""}[hashes](names)
    parts = [code.ljust(64, b"\xcc"), table, strings, hash_table]
    offsets = [0x200]
    for part in parts:
        offsets.append(offsets[-1] + len(part) + -len(part) % 8)
    code_at, table_at, strings_at, hash_at, dynamic_at = offsets
    tags = [(6, BASE + table_at), (5, BASE + strings_at), (10, len(strings))]
    tags += (
        [({"gnu": elf.DT_GNU_HASH, "sysv": elf.DT_HASH}[hashes], BASE + hash_at)] if hashes else []
    )
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in [*tags, (0, 0)])
    sections_at = dynamic_at + len(dynamic)
    headers = b""
    if section is not None:
        headers = bytes(64)
        headers += struct.pack("<IIQQQQIIQQ", 0, section, 0, 0, table_at, len(table), 2, 0, 8, 24)
        headers += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, strings_at, len(strings), 0, 0, 1, 0)
    size = sections_at + len(headers)
    segments = struct.pack("<IIQQQQQQ", 1, 5, 0, BASE, BASE, size, size, 0x1000)
    if hashes:
        segments += struct.pack("<IIQQQQQQ", 2, 6, dynamic_at, 0, 0, len(dynamic), len(dynamic), 8)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", kind, 62, 1, 0, 0x80,
        sections_at if headers else 0, 0, 64, 56, len(segments) // 56, 64, len(headers) // 64, 0,
    )  # fmt: skip
    image = bytearray(size)
    for at, part in [(0, header), (0x80, segments), *zip(offsets, parts, strict=False)]:
        image[at : at + len(part)] = part
    image[dynamic_at:sections_at] = dynamic
    image[sections_at:] = headers
    assert code_at == 0x200
    return bytes(image)


def gnu_table(names: list[str]) -> bytes:
    """Two buckets, one Bloom word; `names` sorted by bucket, first index 1."""
    hashes = [elf.gnu_hash(name.encode()) for name in names]
    buckets = [next((i + 1 for i, h in enumerate(hashes) if h % 2 == b), 0) for b in range(2)]
    chain = [
        h | 1 if i + 1 == len(hashes) or hashes[i + 1] % 2 != h % 2 else h & ~1
        for i, h in enumerate(hashes)
    ]
    return struct.pack(f"<IIIIQ2I{len(chain)}I", 2, 1, 1, 6, 2**64 - 1, *buckets, *chain)


def sysv_table(names: list[str]) -> bytes:
    """One bucket that holds every name."""
    count = len(names) + 1
    chain = [0, *range(2, count), 0]
    return struct.pack(f"<III{count}I", 1, count, 1, *chain)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[object]:
    """Write bytes to a file and open it as ELF."""
    opened = []

    def write_and_open(content: bytes) -> ElfFile:
        path = tmp_path / f"file{len(opened)}"
        path.write_bytes(content)
        opened.append(ElfFile.open(path))
        return opened[-1]

    yield write_and_open
    for file in opened:
        file.close()


@pytest.mark.parametrize(
    "shape",
    [
        {"hashes": "gnu"},
        {"hashes": "sysv"},
        {"hashes": "", "section": elf.SHT_DYNSYM},
        {"hashes": "", "section": elf.SHT_SYMTAB},
        {"hashes": "gnu", "section": elf.SHT_SYMTAB},
    ],
    ids=str,
)
def test_symbols_are_found_by_whatever_table_is_left(make, shape):
    found = make(build(**shape)).symbols([*SYMBOLS, "gamma", "lpha"])

    assert found == {name: Symbol(BASE + at, size) for name, (at, size) in SYMBOLS.items()}


def test_a_name_may_be_the_tail_of_another(make):
    # "longer_alpha" or whichever name comes first shares its string.
    file = make(build({"alpha": (0x40, 8)}, hashes="", section=elf.SHT_SYMTAB))

    assert file.symbols(["alpha", "longer_alpha"]) == {"alpha": Symbol(BASE + 0x40, 8)}


def test_a_name_across_two_chunks_is_found(make, monkeypatch):
    monkeypatch.setattr(elf, "_CHUNK_BYTES", 24)
    file = make(build(hashes="", section=elf.SHT_SYMTAB))

    assert file.symbols(iter(SYMBOLS)).keys() == SYMBOLS.keys()


def test_exported_leaves_out_what_only_symtab_has(make):
    assert make(build(hashes="", section=elf.SHT_SYMTAB)).exported(["alpha"]) == {}


def test_an_undefined_symbol_is_absent(make):
    assert make(build({"alpha": (-BASE, 8)})).symbols(["alpha"]) == {}


@pytest.mark.parametrize(("kind", "is_pie"), [(elf.ET_DYN, True), (elf.ET_EXEC, False)])
def test_type_tells_position_independence(make, kind, is_pie):
    assert make(build(kind=kind)).is_pie is is_pie


def test_addresses_become_file_offsets(make):
    file = make(build(code=b"0123456789"))

    assert file.file_offset(BASE + 0x200) == 0x200
    assert file.bytes_at(BASE + 0x202, 4) == b"2345"
    with pytest.raises(ElfError, match="isn't in the file"):
        file.file_offset(BASE - 1)
    with pytest.raises(ElfError, match="too large"):
        file.bytes_at(BASE, elf.MAX_READ_BYTES + 1)


@pytest.mark.parametrize(
    ("code", "past", "emulated"),
    [
        (PUSH, 0, True),
        (b"\x41\x57", 0, True),  # push r15
        (b"\x90", 0, True),
        (b"\x0f\x1f\x44\x00\x00", 0, True),  # nop5
        (b"\xe8\x00\x00\x00\x00", 0, True),  # call rel32
        (b"\xe9\x00\x00\x00\x00", 0, True),
        (b"\xeb\x00", 0, True),
        (ENDBR64 + PUSH, 4, True),
        (ENDBR64 + b"\x41\x54", 4, True),
        (ENDBR64 + b"\x0f\x1f\x44\x00\x00", 4, True),
        (ENDBR64 + b"\x48\x83\xec\x08", 0, False),  # sub rsp, 8
        (b"\x48\x83\xec\x08" + PUSH, 0, False),
        (b"\x41\x89\xc0" + PUSH, 0, False),  # REX.B of another instruction
        (ENDBR64 + ENDBR64 + PUSH, 0, False),
    ],
    ids=lambda value: value.hex() if isinstance(value, bytes) else None,
)
def test_probe_goes_to_the_first_instruction_the_kernel_emulates(make, code, past, emulated):
    file = make(build({"function": (0x200, 32)}, code=code))

    point = elf.probe_offset(file, file.symbols(["function"])["function"])

    assert point == ProbePoint(0x200 + past, emulated)


def test_a_probe_outside_the_file_is_refused(make):
    file = make(build())
    with pytest.raises(ElfError):
        elf.probe_offset(file, Symbol(BASE + (1 << 30), 8))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "cut short"),
        (b"#!/bin/sh\n" + bytes(64), "not an ELF file"),
        (b"\x7fELF\x01\x01" + bytes(64), "not a 64-bit"),
        (b"\x7fELF\x02\x02" + bytes(64), "not a 64-bit"),
        (build()[:0x90], "cut short"),
        (build()[:54] + b"\x07\x00" + build()[56:], "unknown shape"),
        (build()[:56] + b"\xff\xff" + build()[58:], "unknown shape"),
    ],
    ids=range(7),
)
def test_what_is_no_elf_file_is_refused(make, content, complaint):
    with pytest.raises(ElfError, match=complaint):
        make(content)


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", "/dev/null"):
        with pytest.raises(ElfError, match="not a regular file"):
            ElfFile.open(path)


def test_the_descriptor_of_a_refused_file_is_closed(tmp_path):
    (tmp_path / "text").write_text("x")
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ElfError):
        ElfFile.open(tmp_path / "text")
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_descriptor_stays_its_owners(tmp_path):
    (tmp_path / "file").write_bytes(build())
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    with ElfFile.open(fd) as file:
        assert file.symbols(["alpha"])
    os.close(fd)  # EBADF if it had been closed


SHAPES = [
    {"hashes": "gnu"},
    {"hashes": "sysv"},
    {"hashes": "gnu", "section": elf.SHT_DYNSYM},
    {"hashes": "", "section": elf.SHT_SYMTAB},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_prefix_is_read_or_refused(make, shape):
    whole = build(**shape)
    for length in range(0, len(whole), 3):
        ask_everything(make, whole[:length])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_damage_is_read_or_refused(make, shape):
    chooser = random.Random(101)
    whole = build(**shape)
    for _ in range(1009):
        damaged = bytearray(whole)
        for _ in range(chooser.randint(1, 4)):
            width = chooser.choice([1, 2, 4, 8])
            at = chooser.randrange(len(damaged) - width)
            value = chooser.choice([0, 2 ** (8 * width) - 1, chooser.getrandbits(8 * width)])
            damaged[at : at + width] = value.to_bytes(width, "little")
        ask_everything(make, bytes(damaged))


def ask_everything(make, content: bytes) -> None:
    """Ask all there is to ask; only ElfError may come of it, and soon."""
    began = time.process_time()
    try:
        file = make(content)
        for symbol in file.symbols([*SYMBOLS, "gamma"]).values():
            elf.probe_offset(file, symbol)
    except ElfError:
        pass
    finally:
        assert time.process_time() - began < 2


def test_a_hash_chain_that_loops_ends(make):
    whole = build(hashes="sysv")
    names = sorted(SYMBOLS, key=lambda name: elf.gnu_hash(name.encode()) % 2)
    chain = sysv_table(names)
    looping = chain[:12] + struct.pack("<5I", 0, 2, 1, 2, 1)
    file = make(whole.replace(chain, looping))

    assert file.symbols(["gamma"]) == {}


def test_a_huge_file_costs_a_few_reads(tmp_path, monkeypatch):
    path = tmp_path / "huge"
    path.write_bytes(build())
    os.truncate(path, 1 << 30)
    read = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, at: read.append(n) or pread(fd, n, at))
    with ElfFile.open(path) as file:
        assert file.symbols(SYMBOLS).keys() == SYMBOLS.keys()
    assert sum(read) < 10_000


def test_more_names_than_can_be_asked_at_once_is_an_error(make):
    with pytest.raises(ValueError, match="at most 64"):
        make(build()).symbols(map(str, range(65)))


def test_this_interpreters_own_file():
    library = Path(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("LDLIBRARY"))
    shared = sysconfig.get_config_var("Py_ENABLE_SHARED") and library.exists()
    with ElfFile.open(library if shared else os.path.realpath(sys.executable)) as file:
        found = file.symbols(["Py_Version", "PyEval_EvalCode"])
        word = int.from_bytes(file.bytes_at(found["Py_Version"].address, 4), "little")
        point = elf.probe_offset(file, found["PyEval_EvalCode"])

    assert word == sys.hexversion == ctypes.c_ulong.in_dll(ctypes.pythonapi, "Py_Version").value
    assert point.offset - file.file_offset(found["PyEval_EvalCode"].address) in (0, 4)
