"""Writes a shared library in which every symbol is a function that returns 0. No compiler is needed.

Layout: one segment with the symbol, hash and string tables and the code; one page further, a segment with the dynamic
section. Section headers are there for tools that read them (and for `elf.read_elf`); the loader needs none.
"""

import struct
from collections.abc import Iterable

from pipeline.graph.elf import AARCH64, DYNAMIC, DYNSYM, SONAME, X86_64

# Both return registers are cleared: some callers read a 128-bit result.
_RETURN_ZERO = {
    X86_64: bytes.fromhex("31c0 31d2 c3"),  # xor eax, eax; xor edx, edx; ret
    AARCH64: struct.pack("<3I", 0xD2800000, 0xD2800001, 0xD65F03C0),  # mov x0, #0; mov x1, #0; ret
}
MACHINES = tuple(_RETURN_ZERO)

_EHDR, _PHDR, _SHDR, _SYM, _DYN = 64, 56, 64, 24, 16  # sizes of the records
_PAGE = 0x10000  # the largest page of any machine that we write for
_GLOBAL_FUNCTION = 1 << 4 | 2
_TEXT_SECTION = 4
_PROGBITS, _STRTAB, _HASH = 1, 3, 5
_HASH_TAG, _STRTAB_TAG, _SYMTAB_TAG, _STRSZ_TAG, _SYMENT_TAG = 4, 5, 6, 10, 11
_LOAD, _DYNAMIC_SEGMENT, _STACK = 1, 2, 0x6474E551
_READ, _WRITE, _EXECUTE = 4, 2, 1


def stub_library(soname: str, symbols: Iterable[str], machine: int) -> bytes:
    """The bytes of the library.

    Args:
        soname: its name for the loader.
        symbols: functions that return 0.
        machine: `elf.X86_64` or `elf.AARCH64` (the latter's code was never run by us).

    Raises:
        ValueError: we have no code for this machine.
    """
    if machine not in _RETURN_ZERO:
        raise ValueError(f"no stub code for ELF machine {machine}")
    names = sorted(set(symbols))
    strings, at = _strings([soname, *names])
    code = _RETURN_ZERO[machine].ljust(16, b"\0")

    dynsym = _aligned(_EHDR + 4 * _PHDR, 8)
    table = _hash_table(names)
    hashes = dynsym + _SYM * (len(names) + 1)
    dynstr = hashes + len(table)
    text = _aligned(dynstr + len(strings), 16)
    dynamic = _aligned(text + len(code), 8)
    entries = [
        (SONAME, at[soname]),
        (_HASH_TAG, hashes),
        (_STRTAB_TAG, dynstr),
        (_SYMTAB_TAG, dynsym),
        (_STRSZ_TAG, len(strings)),
        (_SYMENT_TAG, _SYM),
        (0, 0),
    ]
    section_names, name_at = _strings([".dynsym", ".dynstr", ".hash", ".text", ".dynamic", ".shstrtab"])
    shstrtab = dynamic + _DYN * len(entries)
    headers = _aligned(shstrtab + len(section_names), 8)

    symtab = bytes(_SYM) + b"".join(
        struct.pack("<IBBHQQ", at[name], _GLOBAL_FUNCTION, 0, _TEXT_SECTION, text, len(code)) for name in names
    )
    code_end = text + len(code)
    segments = [
        (_LOAD, _READ | _EXECUTE, 0, 0, 0, code_end, code_end, _PAGE),
        (_LOAD, _READ | _WRITE, dynamic, dynamic + _PAGE, dynamic + _PAGE, *[_DYN * len(entries)] * 2, _PAGE),
        (_DYNAMIC_SEGMENT, _READ | _WRITE, dynamic, dynamic + _PAGE, dynamic + _PAGE, *[_DYN * len(entries)] * 2, 8),
        (_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16),  # without it the loader makes every stack executable
    ]
    sections = [
        (0,) * 10,
        (name_at[".dynsym"], DYNSYM, 2, dynsym, dynsym, len(symtab), 2, 1, 8, _SYM),
        (name_at[".dynstr"], _STRTAB, 2, dynstr, dynstr, len(strings), 0, 0, 1, 0),
        (name_at[".hash"], _HASH, 2, hashes, hashes, len(table), 1, 0, 4, 4),
        (name_at[".text"], _PROGBITS, 6, text, text, len(code), 0, 0, 16, 0),
        (name_at[".dynamic"], DYNAMIC, 3, dynamic + _PAGE, dynamic, _DYN * len(entries), 2, 0, 8, _DYN),
        (name_at[".shstrtab"], _STRTAB, 0, 0, shstrtab, len(section_names), 0, 0, 1, 0),
    ]
    parts = {
        0: _header(machine, headers, len(segments), len(sections)),
        _EHDR: b"".join(struct.pack("<IIQQQQQQ", *s) for s in segments),
        dynsym: symtab,
        hashes: table,
        dynstr: strings,
        text: code,
        dynamic: b"".join(struct.pack("<QQ", *e) for e in entries),
        shstrtab: section_names,
        headers: b"".join(struct.pack("<IIQQQQIIQQ", *s) for s in sections),
    }
    image = bytearray(headers + _SHDR * len(sections))
    for offset, part in parts.items():
        image[offset : offset + len(part)] = part
    return bytes(image)


def symbol_hash(name: str) -> int:
    """The System V ABI's hash of a symbol."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value


def _header(machine: int, sections_at: int, segments: int, sections: int) -> bytes:
    magic = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    shared_object = 3
    return struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(magic, shared_object, machine, 1, 0, _EHDR, sections_at, 0),
        *(_EHDR, _PHDR, segments, _SHDR, sections, sections - 1),
    )


def _hash_table(names: list[str]) -> bytes:
    """Buckets of symbol indices, chained; index 0 ends a chain, symbol i is `names[i - 1]`."""
    size = max(1, len(names) // 2)
    buckets, chain = [0] * size, [0] * (len(names) + 1)
    for i, name in enumerate(names, 1):
        bucket = symbol_hash(name) % size
        chain[i], buckets[bucket] = buckets[bucket], i
    return struct.pack(f"<{2 + size + len(chain)}I", size, len(chain), *buckets, *chain)


def _strings(texts: list[str]) -> tuple[bytes, dict[str, int]]:
    """A string table and where each text starts in it."""
    table, at = bytearray(b"\0"), {}
    for text in texts:
        at[text] = len(table)
        table += text.encode() + b"\0"
    return bytes(table), at


def _aligned(offset: int, to: int) -> int:
    return -(-offset // to) * to
