"""Read the few facts a tracer needs from a 64-bit x86-64 ELF file.

The file may be anyone's and may lie: every size, count and loop is bounded,
nothing is read beyond what a question needs, and what can't be read raises
ElfError.
"""

from __future__ import annotations

import itertools
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

ET_EXEC = 2
ET_DYN = 3
EM_X86_64 = 62

PT_LOAD = 1
PT_DYNAMIC = 2
PF_X = 1

DT_HASH = 4
DT_STRTAB = 5
DT_SYMTAB = 6
DT_STRSZ = 10
DT_GNU_HASH = 0x6FFFFEF5

SHT_SYMTAB = 2
SHT_DYNSYM = 11

STT_IFUNC = 10

MAX_SEGMENTS = 256
MAX_SECTIONS = 4096
MAX_DYNAMIC_BYTES = 1 << 16
MAX_SYMBOLS = 1 << 21
MAX_STRINGS_BYTES = 1 << 27
MAX_CHAIN = 4096
MAX_NAMES = 64
MAX_READ_BYTES = 1 << 20

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC = struct.Struct("<qQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_CHUNK_BYTES = _SYMBOL.size << 14


class ElfError(Exception):
    """The file isn't an ELF that can be read here; the message says why."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A defined symbol: its link-time address and its size in bytes."""

    address: int
    size: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A PT_LOAD segment: where it lies in the file and in memory, in bytes."""

    address: int
    offset: int
    file_size: int
    executable: bool


@dataclass(frozen=True, slots=True)
class ProbePoint:
    """Where to attach a uprobe and its uretprobe: a file offset, and whether
    the kernel emulates the instruction there (else it single-steps it)."""

    offset: int
    emulated: bool


@dataclass(frozen=True, slots=True)
class _Table:
    """A symbol table and its strings, as file offsets and sizes in bytes."""

    symbols: int
    symbols_size: int
    strings: int
    strings_size: int


class ElfFile:
    """An ELF file that stays open while it is asked.

    Made by `ElfFile.open`, closed by `close` or a with statement. A file
    descriptor that was passed in stays the caller's.
    """

    def __init__(self, fd: int, owns_fd: bool) -> None:
        self._fd = fd
        self._owns_fd = owns_fd
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ElfError("not a regular file")
        self._size = status.st_size
        (ident, self.type, machine, _, _, segments, sections, _, _,
         segment_size, segment_count, section_size, section_count, _) = _HEADER.unpack(
            self._read(0, _HEADER.size))  # fmt: skip
        if ident[:4] != b"\x7fELF":
            raise ElfError("not an ELF file")
        if ident[4:6] != b"\x02\x01" or machine != EM_X86_64:
            raise ElfError("not a 64-bit little-endian x86-64 ELF file")
        if segment_size != _SEGMENT.size or segment_count > MAX_SEGMENTS:
            raise ElfError("program headers of an unknown shape")
        self._dynamic: tuple[int, int] | None = None
        self.load_segments: tuple[Segment, ...] = tuple(
            self._load_segments(self._read(segments, segment_count * segment_size))
        )
        """The PT_LOAD segments, in the file's order."""
        # Section headers are optional at run time: a bad table is no table.
        usable = section_size == _SECTION.size and section_count <= MAX_SECTIONS
        self._sections = (sections, section_count if usable and sections else 0)

    @classmethod
    def open(cls, file: str | os.PathLike[str] | int) -> Self:
        """Open a path, or use an open file descriptor.

        Raises ElfError for what isn't a 64-bit x86-64 ELF, OSError where it
        can't be opened.
        """
        if isinstance(file, int):
            return cls(file, owns_fd=False)
        # O_NONBLOCK: a FIFO in the file's place must not hang the tracer.
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            return cls(fd, owns_fd=True)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Close the file if `open` opened it."""
        if self._owns_fd:
            os.close(self._fd)
            self._owns_fd = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def is_pie(self) -> bool:
        """Whether it is loaded at an address of the kernel's choice."""
        return bool(self.type == ET_DYN)

    def file_offset(self, address: int) -> int:
        """The file offset of a link-time address; ElfError where it has none."""
        for segment in self.load_segments:
            if 0 <= address - segment.address < segment.file_size:
                return address - segment.address + segment.offset
        raise ElfError(f"address {address:#x} isn't in the file")

    def bytes_at(self, address: int, count: int) -> bytes:
        """`count` bytes, at most 1 MiB, of the file at a link-time address."""
        return self._read(self.file_offset(address), count)

    def symbols(self, names: Iterable[str]) -> dict[str, Symbol]:
        """The defined symbols among `names`, exported or in .symtab.

        A name that isn't defined is absent from the answer.
        """
        wanted = _wanted(names)
        found = self.exported(wanted)
        for kind in (SHT_DYNSYM, SHT_SYMTAB):
            missing = wanted - found.keys()
            if missing:
                for table in self._tables(kind):
                    found = self._scan(table, missing) | found
        return found

    def exported(self, names: Iterable[str]) -> dict[str, Symbol]:
        """The defined dynamic symbols among `names`, by the file's own hash
        table: a few reads, however large the file."""
        entries = self._dynamic_entries()
        if DT_SYMTAB not in entries or DT_STRTAB not in entries:
            return {}
        found = {}
        for name in _wanted(names):
            symbol = self._look_up(entries, name.encode())
            if symbol:
                found[name] = symbol
        return found

    def _read(self, offset: int, count: int) -> bytes:
        if count > MAX_READ_BYTES:
            raise ElfError(f"a part of {count} bytes is too large")
        if offset < 0 or offset + count > self._size:
            raise ElfError("cut short")
        data = os.pread(self._fd, count, offset)
        if len(data) != count:
            raise ElfError("cut short")
        return data

    def _u32(self, offset: int) -> int:
        return int.from_bytes(self._read(offset, 4), "little")

    def _load_segments(self, headers: bytes) -> Iterator[Segment]:
        for kind, flags, offset, address, _, size, _, _ in _SEGMENT.iter_unpack(headers):
            if kind == PT_LOAD:
                yield Segment(address, offset, size, bool(flags & PF_X))
            elif kind == PT_DYNAMIC:
                self._dynamic = (offset, min(size, MAX_DYNAMIC_BYTES))

    def _dynamic_entries(self) -> dict[int, int]:
        if self._dynamic is None:
            return {}
        offset, size = self._dynamic
        entries: dict[int, int] = {}
        for tag, value in _DYNAMIC.iter_unpack(self._read(offset, size - size % _DYNAMIC.size)):
            if tag == 0:
                break
            entries.setdefault(tag, value)
        return entries

    def _look_up(self, entries: dict[int, int], name: bytes) -> Symbol | None:
        if DT_GNU_HASH in entries:
            indexes = self._gnu_chain(self.file_offset(entries[DT_GNU_HASH]), name)
        elif DT_HASH in entries:
            indexes = self._sysv_chain(self.file_offset(entries[DT_HASH]), name)
        else:
            return None
        symbols = self.file_offset(entries[DT_SYMTAB])
        strings = self.file_offset(entries[DT_STRTAB])
        for index in indexes:
            string, info, _, section, address, size = _SYMBOL.unpack(
                self._read(symbols + index * _SYMBOL.size, _SYMBOL.size)
            )
            if not _is_defined(info, section, address):
                continue
            if string + len(name) >= entries.get(DT_STRSZ, 0):
                continue
            if self._read(strings + string, len(name) + 1) == name + b"\0":
                return Symbol(address, size)
        return None

    def _gnu_chain(self, table: int, name: bytes) -> Iterator[int]:
        """Indexes of the symbols whose GNU hash is that of `name`."""
        buckets, first, bloom_words, _ = struct.unpack("<IIII", self._read(table, 16))
        if buckets == 0:
            return
        wanted = gnu_hash(name)
        start = table + 16 + 8 * bloom_words
        chains = start + 4 * buckets
        index = self._u32(start + 4 * (wanted % buckets))
        if index < first:
            return
        for step in range(index, index + MAX_CHAIN):
            value = self._u32(chains + 4 * (step - first))
            if value | 1 == wanted | 1:
                yield step
            if value & 1:
                return

    def _sysv_chain(self, table: int, name: bytes) -> Iterator[int]:
        """Indexes of the symbols in the SysV hash bucket of `name`."""
        buckets, count = struct.unpack("<II", self._read(table, 8))
        if buckets == 0:
            return
        index = self._u32(table + 8 + 4 * (sysv_hash(name) % buckets))
        for _ in range(MAX_CHAIN):
            if not 0 < index < count:
                return
            yield index
            index = self._u32(table + 8 + 4 * buckets + 4 * index)

    def _tables(self, kind: int) -> Iterator[_Table]:
        offset, count = self._sections
        if offset + count * _SECTION.size > self._size:
            return
        sections = list(_SECTION.iter_unpack(self._read(offset, count * _SECTION.size)))
        for section in sections:
            link = section[6]
            if section[1] == kind and link < count:
                yield _Table(section[4], section[5], sections[link][4], sections[link][5])

    def _scan(self, table: _Table, names: Iterable[str]) -> dict[str, Symbol]:
        """Look for `names` in a symbol table that has no hash."""
        positions = self._string_positions(table, names)
        found: dict[str, Symbol] = {}
        if not positions:
            return found
        size = min(table.symbols_size, MAX_SYMBOLS * _SYMBOL.size)
        for data in self._chunks(table.symbols, size - size % _SYMBOL.size):
            for string, info, _, section, address, length in _SYMBOL.iter_unpack(data):
                if string in positions and _is_defined(info, section, address):
                    found.setdefault(positions[string], Symbol(address, length))
        return found

    def _string_positions(self, table: _Table, names: Iterable[str]) -> dict[int, str]:
        """Where each name stands in the table's strings; a name may also be
        the tail of a longer one, so the byte before it says nothing."""
        patterns = {name: name.encode() + b"\0" for name in names}
        overlap = max(map(len, patterns.values())) - 1
        positions: dict[int, str] = {}
        start, data = 0, b""
        for chunk in self._chunks(table.strings, min(table.strings_size, MAX_STRINGS_BYTES)):
            start += max(len(data) - overlap, 0)
            data = data[-overlap:] + chunk
            for name, pattern in patterns.items():
                for at in itertools.islice(_occurrences(data, pattern), MAX_CHAIN):
                    positions[start + at] = name
        return positions

    def _chunks(self, offset: int, size: int) -> Iterator[bytes]:
        for done in range(0, size, _CHUNK_BYTES):
            yield self._read(offset + done, min(_CHUNK_BYTES, size - done))


def probe_offset(elf: ElfFile, symbol: Symbol) -> ProbePoint:
    """The cheapest place for a uprobe and a uretprobe on a function.

    That is its entry, or just past an `endbr64`; never past anything that
    moves the stack pointer, where a uretprobe would overwrite the wrong word
    and the function would return into nowhere.
    """
    entry = elf.file_offset(symbol.address)
    code = elf.bytes_at(symbol.address, 9)
    if _is_emulated(code):
        return ProbePoint(entry, True)
    if code.startswith(_ENDBR64) and _is_emulated(code[len(_ENDBR64) :]):
        return ProbePoint(entry + len(_ENDBR64), True)
    return ProbePoint(entry, False)


_ENDBR64 = b"\xf3\x0f\x1e\xfa"
_NOP5 = b"\x0f\x1f\x44\x00\x00"
_NOP = 0x90
_BRANCHES = (0xE8, 0xE9, 0xEB)  # call rel32, jmp rel32, jmp rel8
_PUSHES = range(0x50, 0x58)
_REX_B = 0x41  # push r8 ... r15


def _is_emulated(code: bytes) -> bool:
    """Whether the kernel emulates the first instruction under a uprobe."""
    first, second = code[0], code[1]
    if first == _NOP or first in _BRANCHES or first in _PUSHES:
        return True
    return (first == _REX_B and second in _PUSHES) or code.startswith(_NOP5)


def _occurrences(data: bytes, pattern: bytes) -> Iterator[int]:
    at = data.find(pattern)
    while at >= 0:
        yield at
        at = data.find(pattern, at + 1)


def _is_defined(info: int, section: int, address: int) -> bool:
    return section != 0 and address != 0 and info & 0xF != STT_IFUNC


def _wanted(names: Iterable[str]) -> set[str]:
    wanted = set(names)
    if len(wanted) > MAX_NAMES:
        raise ValueError(f"at most {MAX_NAMES} names at once")
    return wanted


def gnu_hash(name: bytes) -> int:
    """The hash of DT_GNU_HASH."""
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def sysv_hash(name: bytes) -> int:
    """The hash of DT_HASH."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value
