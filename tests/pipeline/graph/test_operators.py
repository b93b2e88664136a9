"""Operators of lowered graphs have the names that workloads and tables use."""

import pytest

from pipeline.graph.operators import field_name


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("MatMul", "MatMul"),
        ("HcomAllGather", "AllGather"),
        ("MlaPrologV3", "MLAProlog"),
        ("aten.mm.default", "MatMul"),
        ("aten._to_copy.default", "Cast"),
        ("npu.npu_mla_prolog_v3.default", "MLAProlog"),
        ("npu.npu_quant_matmul.default", "QuantBatchMatmul"),
        ("npu.npu_fused_infer_attention_score_v2.out", "FusedInferAttentionScore"),
        ("_c10d_functional.reduce_scatter_tensor.default", "ReduceScatter"),
        ("NobodyKnows", "NobodyKnows"),
    ],
)
def test_the_fields_name(op, name):
    assert field_name(op) == name
