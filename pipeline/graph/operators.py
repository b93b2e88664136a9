"""The field's names of operators in lowered graphs: those that workloads, tables and profiles have."""

import re

from models.glue import NAMES

# Names in GE, which has versions of operators and its own collectives; FX names come here in CamelCase.
_GE = {
    "FusedInferAttentionScoreV2": "FusedInferAttentionScore",
    "HcomAllGather": "AllGather",
    "HcomAllReduce": "AllReduce",
    "HcomAllToAll": "AllToAll",
    "HcomReduceScatter": "ReduceScatter",
    "MlaPrologV3": "MLAProlog",
    "MoeDistributeCombineV2": "MoeDistributeCombine",
    "MoeDistributeDispatchV2": "MoeDistributeDispatch",
    "MoeFinalizeRoutingV2": "MoeFinalizeRouting",
    "MoeInitRoutingV2": "MoeInitRouting",
    "MoeInitRoutingV3": "MoeInitRouting",
    "QuantBatchMatmulV3": "QuantBatchMatmul",
    "SwiGlu": "SwiGLU",
}
# FX names whose CamelCase is neither the field's name nor GE's.
_FX = {
    "all_gather_into_tensor": "AllGather",
    "all_to_all_single_npu": "AllToAll",
    "quant_matmul": "QuantBatchMatmul",
    "reduce_scatter_tensor": "ReduceScatter",
    "scatter_pa_kv_cache_functional": "ScatterPaKvCache",
    "swiglu": "SwiGLU",
    "transpose_batchmatmul": "TransposeBatchMatMul",
}
_FX_NAME = re.compile(r"\w+\.(?:npu_)?(?P<stem>\w+)\.\w+")  # library.operator.overload


def field_name(op: str) -> str:
    """`HcomAllGather`, `aten._to_copy.default` -> `AllGather`, `Cast`. A name that is not known stays as it is."""
    if match := _FX_NAME.fullmatch(op):
        stem = match["stem"]
        op = _FX.get(stem) or NAMES.get(stem) or "".join(part[:1].upper() + part[1:] for part in stem.split("_"))
    return _GE.get(op, op)
