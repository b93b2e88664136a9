"""Shapes, dtypes and formats of one kernel, slot by slot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.profile.tensors import TensorSpec, dtype_name, format_name, parse_tensors


def test_slots_are_positional():
    tensors = parse_tensors("1,1024;64,192,16,16", "FLOAT16;FLOAT16", "ND;FRACTAL_NZ")
    assert tensors == (TensorSpec((1, 1024), "FLOAT16", "ND"), TensorSpec((64, 192, 16, 16), "FLOAT16", "FRACTAL_NZ"))


def test_an_empty_slot_is_absent_if_type_or_format_says_so_else_a_scalar():
    tensors = parse_tensors("8;;;;", "FLOAT;DT_UNDEFINED;INT64;FLOAT;FLOAT", "ND;ND;ND;NULL;FORMAT_ND")
    assert tensors == (
        TensorSpec((8,), "FLOAT", "ND"),
        None,
        TensorSpec((), "INT64", "ND"),
        None,
        TensorSpec((), "FLOAT", "ND"),
    )


def test_counts_of_shapes_and_types_may_differ():
    assert parse_tensors("2;3;", "INT8", "ND") == (TensorSpec((2,), "INT8", "ND"), TensorSpec((3,), "", ""), None)
    assert parse_tensors("2", "INT8;INT8;INT8", "ND;ND") == (TensorSpec((2,), "INT8", "ND"),)


def test_no_shapes_is_no_tensors_and_an_empty_cell_is_one_scalar():
    assert parse_tensors(None, None, None) == ()
    assert parse_tensors("", "FLOAT", "ND") == (TensorSpec((), "FLOAT", "ND"),)


@pytest.mark.parametrize("word", ["BF16", "DT_BF16", "bfloat16", " DT_BF16 "])
def test_dtype_names(word: str):
    assert dtype_name(word) == "BF16"


@pytest.mark.parametrize(
    ("word", "name"), [("FORMAT_ND", "ND"), ("NC1HWC0:1", "NC1HWC0"), ("FORMAT_FRACTAL_NZ", "FRACTAL_NZ")]
)
def test_format_names(word: str, name: str):
    assert format_name(word) == name


@pytest.mark.parametrize("shape", ["a,b", "1,-2", "1.5", "9" * 30, "1,2,x"])
def test_what_is_no_shape_is_refused(shape: str):
    with pytest.raises(ValueError):
        parse_tensors(shape, "FLOAT", "ND")


@pytest.mark.parametrize(
    ("shape", "dtype", "format_", "stored", "logical"),
    [
        ((64, 192, 16, 16), "FLOAT16", "FRACTAL_NZ", 6_291_456, (3072, 1024)),  # row 1 of the facts page
        ((9216, 4096), "FLOAT", "ND", 150_994_944, (9216, 4096)),  # row 2
        ((4096, 4096), "FLOAT", "ND", 67_108_864, (4096, 4096)),  # row 3
        ((8, 32, 448, 16, 32), "INT8", "FRACTAL_NZ", 8 * 32 * 448 * 512, (8, 7168, 1024)),  # experts, 5-D storage
        ((8, 7168, 1000), "INT8", "FRACTAL_NZ", 8 * 7168 * 1024, (8, 7168, 1000)),  # experts, logical: padded to 32
        ((100, 100), "BF16", "FRACTAL_NZ", 112 * 112 * 2, (100, 100)),
        ((7168, 1024), "INT4", "ND", 7168 * 1024 // 2, (7168, 1024)),
        ((3,), "INT4", "ND", 2, (3,)),
        ((), "INT64", "ND", 8, ()),
        ((4, 4), "SECRET", "ND", None, (4, 4)),
    ],
)
def test_bytes_and_logical_sizes(shape, dtype, format_, stored, logical):
    tensor = TensorSpec(shape, dtype, format_)
    assert (tensor.stored_bytes, tensor.logical) == (stored, logical)


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from(["FLOAT", "BF16", "INT8", "INT4"]))
def test_storage_and_logical_shape_of_one_weight_have_the_same_bytes(rows: int, columns: int, dtype: str):
    logical = TensorSpec((rows, columns), dtype, "FRACTAL_NZ")
    c0 = 256 // logical.bits
    storage = TensorSpec((-(-columns // c0), -(-rows // 16), 16, c0), dtype, "FRACTAL_NZ")
    assert storage.is_fractal_storage and storage.stored_bytes == logical.stored_bytes
    assert [big >= small for big, small in zip(storage.logical, (rows, columns), strict=True)] == [True, True]


@given(st.lists(st.one_of(st.none(), st.lists(st.integers(0, 9999), min_size=1, max_size=5)), min_size=1, max_size=12))
def test_every_slot_comes_back(slots: list[list[int] | None]):
    shapes = ";".join(",".join(map(str, slot)) if slot else "" for slot in slots)
    types = ";".join("FLOAT" if slot else "DT_UNDEFINED" for slot in slots)
    tensors = parse_tensors(shapes, types, ";".join("ND" for _ in slots))
    assert [list(tensor.shape) if tensor else None for tensor in tensors] == slots
