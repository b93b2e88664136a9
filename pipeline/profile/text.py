"""Bytes of a file as UTF-8 text, whatever it was saved as."""

import codecs
from pathlib import Path

HEAD = 1 << 16  # bytes in which a header line ends


def head(path: Path) -> bytes:
    """The first bytes of a file."""
    with path.open("rb") as file:
        return file.read(HEAD)


def head_text(path: Path) -> str:
    """The first bytes of a file as text, undecodable ones replaced."""
    data = head(path)
    return data.decode(_marked(data) or "utf-8", "replace").removeprefix("\ufeff")


def is_utf8(data: bytes) -> bool:
    """Whether no byte order mark says otherwise."""
    return _marked(data) in (None, "utf-8-sig")


def utf8(data: bytes) -> tuple[bytes, str | None]:
    """The bytes as UTF-8 without a byte order mark, and what they were if that was not UTF-8.

    Without a mark: UTF-8, else GB18030 (what a Chinese spreadsheet program saves), else UTF-8 with bad bytes replaced.
    """
    marked = _marked(data)
    if marked == "utf-8-sig":
        data = data[len(codecs.BOM_UTF8) :]
    elif marked:
        return data.decode(marked, "replace").removeprefix("\ufeff").encode("utf-8", "replace"), marked
    if data.isascii() or _decodes(data, "utf-8"):
        return data, None
    if _decodes(data, "gb18030"):
        return data.decode("gb18030").encode("utf-8", "replace"), "gb18030"
    return data.decode("utf-8", "replace").encode("utf-8"), "unknown"


def _marked(data: bytes) -> str | None:
    """The encoding that a byte order mark says."""
    if data.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    return "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else None


def _decodes(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True
