"""Bytes and FLOPs from shapes: orientations, storage formats, ranges, contradictions."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.analysis.operators import operator_table
from pipeline.analysis.traffic import Traffic, contract, traffic
from pipeline.profile.tensors import TensorSpec, parse_tensors


def of(op_type: str, shapes: str, dtypes: str, out: str, formats: str | None = None, out_type: str = "BF16") -> Traffic:
    kind = operator_table().kind(op_type)
    layout = formats or ";".join("ND" for _ in shapes.split(";"))
    outs = ";".join(out_type for _ in out.split(";"))
    return traffic(kind, parse_tensors(shapes, dtypes, layout), parse_tensors(out, outs, outs.replace(out_type, "ND")))


def test_a_weight_in_fractal_storage_with_k_in_its_columns() -> None:
    found = of("MatMulV2", "1,1024;64,192,16,16", "FLOAT16;FLOAT16", "1,3072", "ND;FRACTAL_NZ", "FLOAT16")
    assert found.weight_bytes == 6_291_456 and found.rows == 1
    assert found.flops == 2 * 1024 * 3072


def test_the_other_orientation_gives_the_same() -> None:
    found = of("MatMulV2", "1,1024;192,64,16,16", "FLOAT16;FLOAT16", "1,3072", "ND;FRACTAL_NZ", "FLOAT16")
    assert (found.weight_bytes, found.flops) == (6_291_456, 2 * 1024 * 3072)


@settings(deadline=None)
@given(
    m=st.integers(1, 40),
    k=st.integers(1, 300),
    n=st.integers(1, 300),
    turn_x=st.booleans(),
    turn_w=st.booleans(),
    batch=st.integers(1, 5),
)
def test_any_orientation_is_read_or_another_that_gives_the_same_sizes(
    m: int, k: int, n: int, turn_x: bool, turn_w: bool, batch: int
) -> None:
    lead = (batch,) if batch > 1 else ()
    x = TensorSpec((*lead, *((k, m) if turn_x else (m, k))), "BF16", "ND")
    w = TensorSpec((*lead, *((n, k) if turn_w else (k, n))), "BF16", "ND")
    found = contract(x, w, TensorSpec((*lead, m, n), "BF16", "ND"))
    assert found is not None
    total, common, columns = found
    # rows x N is the output, whatever was taken for K
    assert total * columns == batch * m * n
    assert common in (k, m, n)
    if len({m, k, n}) == 3:
        assert (total, common, columns) == (batch * m, k, n)


@settings(deadline=None)
@given(k=st.integers(1, 2000), n=st.integers(1, 2000), rows=st.integers(1, 64), kind=st.sampled_from(["BF16", "INT8"]))
def test_padding_of_fractal_storage_does_not_change_the_flops(k: int, n: int, rows: int, kind: str) -> None:
    c0 = 16 if kind == "BF16" else 32
    stored = TensorSpec((math.ceil(n / c0), math.ceil(k / 16), 16, c0), kind, "FRACTAL_NZ")
    found = contract(TensorSpec((rows, k), kind, "ND"), stored, TensorSpec((rows, n), "BF16", "ND"))
    assert found is not None and found[0] * found[2] == rows * n
    assert found[1] == k


def test_an_output_with_merged_batches() -> None:
    found = of("TransposeBatchMatMul", "64,8,512;64,512,128", "BF16;BF16", "8,8192")
    assert found.flops == 2 * 64 * 8 * 512 * 128
    assert found.rows == 8 and found.weight_bytes == 64 * 512 * 128 * 2


def test_quantised_matmul_counts_its_weight_in_bytes_and_its_scales_apart() -> None:
    found = of("QuantBatchMatmulV3", "8,7168;7168,4096;4096;;;8", "INT8;INT8;FLOAT;UNDEFINED;UNDEFINED;FLOAT", "8,4096")
    assert found.weight_bytes == 7168 * 4096
    assert found.other_bytes == 8 * 7168 + 4096 * 4 + 8 * 4 + 8 * 4096 * 2
    assert found.compute == "int8"


def test_int4_packed_into_int32_is_found_by_the_output() -> None:
    found = of("WeightQuantBatchMatmulV2", "8,4096;4096,512", "BF16;INT32", "8,4096")
    assert found.flops == 2 * 8 * 4096 * 4096
    assert found.weight_bytes == 4096 * 512 * 4 and found.compute == "bf16"


def test_int4_in_int32_whose_shape_counts_values_is_no_weight_of_32_bits() -> None:
    found = of("WeightQuantBatchMatmulV2", "8,4096;4096,4096", "BF16;INT32", "8,4096")
    assert found.weight_bytes == 4096 * 4096 / 2 and found.flops == 2 * 8 * 4096 * 4096


def test_int4_counts_half_a_byte() -> None:
    found = of("QuantBatchMatmulV3", "8,4096;4096,4096;4096", "INT8;INT4;FLOAT", "8,4096")
    assert found.weight_bytes == 4096 * 4096 / 2 and found.compute == "int8"


@pytest.mark.parametrize(("dtype", "bits"), [("DT_FLOAT8_E4M3FN", 8), ("DT_FLOAT4_E2M1", 4)])
def test_mx_formats_have_a_scale_for_each_32_values_beside_the_weight(dtype: str, bits: int) -> None:
    types = f"{dtype};{dtype};DT_FLOAT8_E8M0;DT_UNDEFINED;DT_FLOAT8_E8M0"
    shapes, formats = "8,4096;2048,4096;2048,64,2;;8,64,2", "ND;ND;ND;NULL;ND"
    found = of("QuantBatchMatmulV4", shapes, types, "8,2048", formats)
    assert found.weight_bytes == 2048 * 4096 * bits / 8 and found.compute == "int8"
    assert found.other_bytes == 8 * 4096 * bits / 8 + 2048 * 128 + 8 * 128 + 8 * 2048 * 2


def test_a_transposed_activation_has_the_same_rows_and_flops() -> None:
    plain = of("MatMulV2", "8,4096;4096,2048", "BF16;BF16", "8,2048")
    assert of("MatMulV2", "4096,8;4096,2048", "BF16;BF16", "8,2048") == plain and plain.rows == 8


def test_experts_as_a_list_of_weights_are_all_counted() -> None:
    shapes = "64,7168;" + ";".join(["7168,4096"] * 8) + ";;8"
    types = ";".join(["BF16"] * 9) + ";UNDEFINED;INT64"
    found = of("GroupedMatmul", shapes, types, "64,4096", ";".join(["ND"] * 9) + ";NULL;ND")
    stack = of("GroupedMatmul", "64,7168;8,7168,4096;;8", "BF16;BF16;UNDEFINED;INT64", "64,4096", "ND;ND;NULL;ND")
    assert found == stack and found.experts == 8 and found.weight_bytes == 8 * 7168 * 4096 * 2


def test_shapes_that_contradict_each_other_give_no_bytes() -> None:
    found = of("MatMulV2", "81920,4096;8192,512", "BF16;BF16", "4096,512")
    assert found.inconsistent and not found.known and found.flops is None
    assert "81920x4096 by 8192x512" in found.issue
    assert not of("MatMulV2", "8192,4096;8192,512", "BF16;BF16", "4096,512").inconsistent


def test_an_expert_stack_is_a_range_from_experts_with_tokens_to_all() -> None:
    few = of("GroupedMatmul", "2,7168;32,7168,4096", "BF16;BF16", "2,4096")
    assert few.weight_bytes == few.read_high == 32 * 7168 * 4096 * 2
    assert few.weight_bytes / 32 < few.read < 2 * few.weight_bytes / 32  # two rows reach two experts at most
    many = of("GroupedMatmul", "4096,7168;32,7168,4096", "BF16;BF16", "4096,4096")
    assert many.read == pytest.approx(many.weight_bytes) and many.experts == 32
    assert many.flops == 2 * 4096 * 7168 * 4096


def test_an_expert_stack_printed_as_storage() -> None:
    # 4 experts of [K=1024, N=2048], INT8: [E, N/32, K/16, 16, 32]
    found = of("GroupedMatmul", "64,1024;4,64,64,16,32", "INT8;INT8", "64,2048", "ND;FRACTAL_NZ")
    assert found.flops == 2 * 64 * 1024 * 2048 and found.weight_bytes == 4 * 1024 * 2048


def test_an_expert_stack_of_another_k_contradicts() -> None:
    assert of("GroupedMatmul", "64,1000;4,1024,2048", "BF16;BF16", "64,2048").inconsistent


def test_mla_prolog_reads_four_projections_and_not_the_cache() -> None:
    shapes = "8,7168;7168,1536;1536,24576;128,128,512;7168,576;1536;512;8,64;8,64;8;900,128,1,512;900,128,1,64"
    dtypes = ";".join(["BF16"] * 12)
    found = of("MlaPrologV2", shapes, dtypes, "8,128,512;8,128,64;900,128,1,512;900,128,1,64")
    weights = 7168 * 1536 + 1536 * 24576 + 128 * 128 * 512 + 7168 * 576
    assert found.weight_bytes == 2 * weights and found.rows == 8
    assert found.flops == 2 * 8 * weights
    assert found.other_bytes < 900 * 128 * 64  # nothing as large as the cache


def test_mla_preprocess_has_its_projections_among_scales() -> None:
    shapes = "8,7168;7168;7168;1;1;7168,2112;2112;2112;1536;1536;1;1;1536,24576;24576;24576;512;8,64;8,64;"
    shapes += "128,128,512;900,128,1,512"
    dtypes = "BF16;BF16;BF16;BF16;INT8;INT8;INT64;INT32;BF16;BF16;BF16;INT8;INT8;INT64;INT32;BF16;BF16;BF16;BF16;BF16"
    found = of("MlaPreprocess", shapes, dtypes, "8,128,512;900,128,1,512")
    assert found.weight_bytes == 7168 * 2112 + 1536 * 24576 + 2 * 128 * 128 * 512


def test_attention_and_dispatch_stay_unknown() -> None:
    assert not of("FusedInferAttentionScore", "8,128,512;900,128,1,512", "BF16;BF16", "8,128,512").known
    assert not of("MoeDistributeDispatchV2", "8,7168;8,8", "BF16;INT32", "64,7168").known


def test_a_gather_reads_only_the_rows_it_returns() -> None:
    found = of("GatherV2", "150000,7168;8", "BF16;INT32", "8,7168")
    assert found.other_bytes == 2 * 8 * 7168 * 2 + 8 * 4


def test_absent_tensors_and_unknown_types() -> None:
    assert of("Add", "", "UNDEFINED", "", out_type="UNDEFINED").issue == "no shapes"
    assert "STRING" in of("Add", "8,8", "STRING", "8,8").issue


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 70), max_size=5).map(tuple), min_size=0, max_size=6), st.data())
def test_no_shapes_whatever_make_it_crash(shapes: list[tuple[int, ...]], data: st.DataObject) -> None:
    table = operator_table()
    kind = table.kinds[data.draw(st.sampled_from(sorted(table.kinds)))]
    types = st.sampled_from(["BF16", "INT8", "INT32", "FLOAT", "INT4", "ODD", ""])
    formats = st.sampled_from(["ND", "FRACTAL_NZ"])
    tensors = [
        None if not s and data.draw(st.booleans()) else TensorSpec(s, data.draw(types), data.draw(formats))
        for s in shapes
    ]
    cut = data.draw(st.integers(0, len(tensors)))
    found = traffic(kind, tensors[:cut], tensors[cut:])
    assert found.other_bytes >= 0 and found.read <= found.read_high
    assert found.known or found.issue
