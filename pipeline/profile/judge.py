"""The compiled pass over the bytes of a table: which lines every CSV parser reads the same way.

Everything that the compiled code depends on lives in this file: numba's disk cache looks at no other.
"""

import numpy as np
import numpy.typing as npt

from pipeline.simulator.engine import compiled

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

COMMA, QUOTE, NEWLINE, RETURN = b',"\n\r'


@compiled
def judge(text: Bytes, start: int, stop: int, fields: int, longest: int) -> tuple[Flags, Integers]:
    """Whether each line needs a closer look, and the byte after its end.

    It does unless it has the right number of fields and every quote opens a field, closes one, or stands beside
    another quote, and it is not absurdly long: then all CSV parsers agree about it.
    """
    count = 0
    for at in range(start, stop):
        count += text[at] == NEWLINE
    wrong = np.zeros(count, np.bool_)
    ends = np.zeros(count, np.int64)
    line = commas = 0
    begin = start
    quoted = odd = False
    for at in range(start, stop):
        byte = text[at]
        if byte == COMMA:
            if not quoted:
                commas += 1
        elif byte == QUOTE:
            if quoted:
                after = text[at + 1]
                odd |= after != COMMA and after != QUOTE and after != NEWLINE and after != RETURN
            elif at > begin:
                odd |= text[at - 1] != COMMA and text[at - 1] != QUOTE
            quoted = not quoted
        elif byte == NEWLINE:
            wrong[line] = quoted or odd or commas != fields - 1 or at - begin > longest
            ends[line] = at + 1
            line += 1
            commas = 0
            begin = at + 1
            quoted = odd = False
    return wrong, ends
