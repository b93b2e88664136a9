"""Reads the few parts of an ELF shared library that linking needs: its needs, its names, its symbols."""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

X86_64, AARCH64 = 62, 183
DYNAMIC, DYNSYM = 6, 11  # section types
NEEDED, SONAME = 1, 14  # dynamic tags
WEAK = 2  # symbol binding


class NotElfError(ValueError):
    """The file is no 64-bit little-endian ELF file, or it is cut off."""


@dataclass
class ElfFile:
    """What one shared library needs and gives.

    Attributes:
        machine: ELF machine number, e.g. `X86_64`.
        soname: its name for the loader, "" if it has none.
        needed: sonames that it wants loaded.
        undefined: symbols that others must define; weak ones are left out, they may stay undefined.
        defined: symbols that it gives to others.
    """

    machine: int
    soname: str = ""
    needed: list[str] = field(default_factory=list)
    undefined: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)


def read_elf(path: Path) -> ElfFile:
    """Read a 64-bit little-endian ELF file.

    Raises:
        NotElfError: it is none, or its tables point outside of it.
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(data)
        except (ValueError, IndexError, struct.error) as error:
            raise NotElfError(f"{path}: not a complete 64-bit little-endian ELF file ({error})") from error


@dataclass(frozen=True)
class _Section:
    type: int
    offset: int
    size: int
    link: int


def _read(data: mmap.mmap) -> ElfFile:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("wrong magic number")
    (machine,) = struct.unpack_from("<H", data, 18)
    sections = list(_sections(data))
    found = ElfFile(machine)
    for section in sections:
        if section.type == DYNAMIC:
            _read_dynamic(data, section, sections[section.link].offset, found)
        elif section.type == DYNSYM:
            _read_symbols(data, section, sections[section.link].offset, found)
    return found


def _sections(data: mmap.mmap) -> Iterator[_Section]:
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    if not offset or offset + size * count > len(data):
        raise ValueError("its section table is missing")
    for i in range(count):
        _, kind, _, _, start, length, link = struct.unpack_from("<IIQQQQI", data, offset + i * size)
        yield _Section(kind, start, length, link)


def _read_dynamic(data: mmap.mmap, section: _Section, strings: int, found: ElfFile) -> None:
    for at in range(section.offset, section.offset + section.size, 16):
        tag, value = struct.unpack_from("<qQ", data, at)
        if tag == 0:
            return
        if tag == NEEDED:
            found.needed.append(_string(data, strings + value))
        elif tag == SONAME:
            found.soname = _string(data, strings + value)


def _read_symbols(data: mmap.mmap, section: _Section, strings: int, found: ElfFile) -> None:
    table = data[section.offset : section.offset + section.size]
    for name, info, _, index, _, _ in struct.iter_unpack("<IBBHQQ", table):
        binding = info >> 4
        if not name:
            continue
        if index:
            if binding:  # local ones are no one else's
                found.defined.add(_string(data, strings + name))
        elif binding != WEAK:
            found.undefined.add(_string(data, strings + name))


def _string(data: mmap.mmap, start: int) -> str:
    return data[start : data.find(b"\0", start)].decode()
