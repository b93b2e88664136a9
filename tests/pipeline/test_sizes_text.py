"""Sizes as text: 18 MB is not 18 MiB, and nothing is rounded silently."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sizes_text import SizeError, approximate_size, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("18 MiB", 18 * 2**20),
        ("18MiB", 18 * 2**20),
        ("18 MB", 18_000_000),
        ("6.75 MiB", 7_077_888),
        ("1 GiB", 2**30),
        ("2 GB", 2_000_000_000),
        ("4 KiB", 4096),
        ("4 kB", 4000),
        ("4 KB", 4000),
        ("7 B", 7),
        ("18874368", 18 * 2**20),
        ("18_874_368", 18 * 2**20),
        (18874368, 18 * 2**20),
        (1e6, 1_000_000),
        (0, 0),
        ("-1 MiB", -(2**20)),
    ],
)
def test_a_size_is_a_whole_number_of_bytes(text: Any, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("18 mib", "write MiB"),
        ("18 mb", "write MB"),
        ("18 Mb", "write MB"),
        ("18 M", "MiB (2^20 bytes) or MB (10^6 bytes)"),
        ("18 apples", "MiB (2^20 bytes) or MB (10^6 bytes)"),
        ("half", "18 MiB"),
        ("", "18 MiB"),
        ("1.5.2 MiB", "18 MiB"),
        ("0.3 B", "whole number of bytes"),
        (0.5, "whole number of bytes"),
        (float("nan"), "whole number of bytes"),
        (float("inf"), "whole number of bytes"),
        (True, "not a size"),
        (None, "not a size"),
        ([18], "not a size"),
    ],
)
def test_what_is_no_size_says_what_to_write(text: Any, hint: str) -> None:
    with pytest.raises(SizeError) as error:
        parse_size(text)
    assert hint in str(error.value)


@given(st.integers(0, 2**45))
def test_formatting_is_exact(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("size", "text"), [(18 * 2**20, "18 MiB"), (7_077_888, "6.75 MiB"), (18_000_000, "18000000 B"), (0, "0 B")]
)
def test_formatting_is_readable(size: int, text: str) -> None:
    assert format_size(size) == text


def test_an_approximate_size_has_two_decimals() -> None:
    assert approximate_size(18_000_000) == "17.17 MiB"
    assert approximate_size(12.4) == "12 B"
