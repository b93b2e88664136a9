"""The field's names of operators in lowered graphs: those that workloads, tables and profiles have."""

import re
from collections import Counter
from collections.abc import Iterable

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


# Of a workload and of a graph: names of the same kernel that differ although `field_name` is applied.
OTHER_NAMES = frozenset(
    {
        # Only before a cut embedding: a trace runs in one process, whose rows stand for those of every die, so it
        # wraps token ids where a die of a group subtracts its first row.
        ("FloorMod", "Sub"),
        # A transposition of npugraph_ex is a view, and a copy of that view.
        ("Transpose", "TensorMove"),
    }
)
# An attention / FFN disaggregated deployment is lowered one side at a time, and what the other sends is made up: this
# norm stands for a Recv (`collectives.recv`), a copy that no kernel needs for a Send.
_STAND_INS = {
    "ge": {"Recv": ("Cast", "Pow", "ReduceMean", "Add", "Rsqrt", "Cast", "Mul", "Cast"), "Send": ()},
    "fx": {"Recv": ("Cast", "Pow", "ReduceMean", "Add", "Rsqrt", "Cast", "Mul"), "Send": ()},
}


def differing(planned: Iterable[str], found: Iterable[str], kind: str) -> tuple[Counter[str], Counter[str]]:
    """Kernels that only one of a workload and a lowered graph has.

    Args:
        planned: operators of the workload's kernels.
        found: field's names of the graph's.
        kind: of the graph, `ge` or `fx`.

    Returns:
        Operators that the graph lacks, and those that it has beyond the planned ones, each with their number.
    """
    stand_ins = _STAND_INS[kind]
    wanted = Counter(name for op in planned for name in stand_ins.get(op, (op,)))
    have = Counter(found)
    missing, extra = wanted - have, have - wanted
    for ours, theirs in OTHER_NAMES:
        same = min(missing[ours], extra[theirs])
        missing[ours] -= same
        extra[theirs] -= same
    return +missing, +extra
