"""Tensors of a kernel, from the shapes, dtypes and formats that the profiler prints: slots, bytes, logical sizes.

A slot without a shape is a scalar, or no tensor at all (an optional input left out): the dtype and format tell.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

# Bits per element.
BITS = {
    **dict.fromkeys(("FLOAT64", "DOUBLE", "INT64", "UINT64", "COMPLEX64"), 64),
    **dict.fromkeys(("FLOAT", "INT32", "UINT32", "HIFLOAT32"), 32),
    **dict.fromkeys(("FLOAT16", "BF16", "INT16", "UINT16"), 16),
    **dict.fromkeys(("INT8", "UINT8", "BOOL", "FLOAT8_E4M3FN", "FLOAT8_E5M2", "FLOAT8_E8M0", "HIFLOAT8"), 8),
    **dict.fromkeys(("INT4", "UINT4", "FLOAT4_E2M1", "FLOAT4_E1M2"), 4),
    "COMPLEX128": 128,
}
SAME = {"BFLOAT16": "BF16", "FLOAT32": "FLOAT", "FP32": "FLOAT", "FP16": "FLOAT16", "HALF": "FLOAT16"}
NOTHING = frozenset({"", "UNDEFINED", "NULL", "N/A", "RESERVED"})
CUBE = 16  # rows of a fractal; a fractal is 16 rows of 32 bytes


@dataclass(frozen=True)
class TensorSpec:
    """One tensor as the kernel saw it.

    Attributes:
        shape: as printed: the storage shape for some private formats, the logical one for others; () is a scalar.
        dtype: name without `DT_`: `BF16`, `FLOAT16`, `FLOAT`, `INT8`, ...
        format: name without `FORMAT_` and without a sub-format: `ND`, `FRACTAL_NZ`, `NCHW`, ...
    """

    shape: tuple[int, ...]
    dtype: str
    format: str

    @property
    def bits(self) -> int | None:
        """Bits of one element, None for a dtype we don't know."""
        return BITS.get(self.dtype)

    @property
    def is_fractal_storage(self) -> bool:
        """The printed shape is FRACTAL_NZ storage `[..., C/C0, R/16, 16, C0]`, C0 = 32 bytes of elements.

        The format alone doesn't say: a grouped weight of format FRACTAL_NZ may be printed as its logical [E, K, N].
        """
        shape = self.shape
        return self.format == "FRACTAL_NZ" and len(shape) >= 4 and shape[-2] == CUBE and shape[-1] == self._c0

    @property
    def logical(self) -> tuple[int, ...]:
        """Sizes without the tiling, [..., R, C]; of storage the padded ones, as the padding isn't printed."""
        if not self.is_fractal_storage:
            return self.shape
        *batch, columns, rows, inner, c0 = self.shape
        return (*batch, rows * inner, columns * c0)

    @property
    def elements(self) -> int:
        """Number of elements as printed."""
        return math.prod(self.shape)

    @property
    def stored_bytes(self) -> int | None:
        """Bytes in memory, padding of FRACTAL_NZ included; None for a dtype we don't know.

        int4 packed into int8 or int32 is not visible in a shape: then this is twice (eight times) too much if the
        shape counts elements, and right if it counts containers.
        """
        if self.bits is None:
            return None
        count = self.elements
        if self.format == "FRACTAL_NZ" and len(self.shape) >= 2 and not self.is_fractal_storage:
            *batch, rows, columns = self.shape
            c0 = self._c0 or 1
            count = math.prod(batch) * -(-rows // CUBE) * CUBE * -(-columns // c0) * c0
        return (count * self.bits + 7) // 8

    @property
    def _c0(self) -> int | None:
        return 256 // self.bits if self.bits else None


@lru_cache(maxsize=1 << 16)
def parse_tensors(shapes: str | None, dtypes: str | None, formats: str | None) -> tuple[TensorSpec | None, ...]:
    """The tensors of one cell each of shapes, dtypes and formats.

    Slots are positional and separated by `;`. An empty shape is None (absent) where dtype or format says undefined,
    else a scalar. Slot counts may differ: what is missing at the end is absent, or has dtype or format "".

    Args:
        shapes: such as `1,1024;64,192,16,16`; None where the file has none.
        dtypes: such as `FLOAT16;DT_INT8`.
        formats: such as `ND;FRACTAL_NZ`.

    Raises:
        ValueError: a shape has something other than sizes in it.
    """
    if shapes is None:
        return ()
    names = [dtype_name(word) for word in (dtypes or "").split(";")]
    layouts = [format_name(word) for word in (formats or "").split(";")]
    return tuple(
        _slot(shape.strip(), *(words[at] if at < len(words) else "" for words in (names, layouts)))
        for at, shape in enumerate(shapes.split(";"))
    )


def dtype_name(word: str) -> str:
    """`DT_BF16`, `bfloat16` -> `BF16`; `UNDEFINED` where it says that there is none."""
    name = word.strip(" \t\"'").upper().removeprefix("DT_")
    return SAME.get(name, name)


def format_name(word: str) -> str:
    """`FORMAT_ND` -> `ND`, `NC1HWC0:1` -> `NC1HWC0`."""
    return word.strip(" \t\"'").upper().removeprefix("FORMAT_").partition(":")[0]


def _slot(shape: str, dtype: str, layout: str) -> TensorSpec | None:
    if not shape:
        absent = dtype in NOTHING or layout in NOTHING - {""}
        return None if absent else TensorSpec((), dtype, layout)
    sizes: list[int] = []
    for word in shape.strip("()[]").split(","):
        if not word.strip() and sizes:
            continue  # `(8,)`
        size = int(word) if word.strip().isascii() and len(word) < 20 else -1
        if size < 0:
            raise ValueError(f"{shape!r} is no shape")
        sizes.append(size)
    return TensorSpec(tuple(sizes), dtype, layout)
