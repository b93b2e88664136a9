"""The kernels that an NPU would launch, each with a plain PyTorch meaning on CPU and `meta`.

A function marked with `kernel` is one launch. On NPU tensors, or inside `use_npu_operators`, it calls the fused
`torch_npu` operator (`models.ops.npu`), otherwise `models.ops.plain`. Shapes: T tokens of this die, H hidden size,
N attention heads of this die, E local experts, R rows that the experts see.
"""

from models.ops.attention import (
    apply_rotary_pos_emb,
    fused_infer_attention_score,
    mla_prolog,
    mla_prolog_quant,
    write_cache,
)
from models.ops.backend import join, limit_cores, stream, use_npu_operators
from models.ops.communication import all_gather, all_reduce, all_to_all, recv, reduce_scatter, send
from models.ops.experts import (
    grouped_matmul,
    moe_combine,
    moe_dispatch,
    moe_gating_grouped_top_k,
    moe_gating_top_k,
    moe_gating_top_k_softmax,
)
from models.ops.matmuls import (
    activate,
    dequant_swiglu_quant,
    dynamic_quant,
    matmul,
    quant_matmul,
    quantise,
    swiglu,
    transpose_batch_matmul,
)
from models.ops.routing import Routing
from models.ops.vectors import add, add_rms_norm, cast, gather, rms_norm, split, transpose

__all__ = [
    "Routing",
    "activate",
    "add",
    "add_rms_norm",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "apply_rotary_pos_emb",
    "cast",
    "dequant_swiglu_quant",
    "dynamic_quant",
    "fused_infer_attention_score",
    "gather",
    "grouped_matmul",
    "join",
    "limit_cores",
    "matmul",
    "mla_prolog",
    "mla_prolog_quant",
    "moe_combine",
    "moe_dispatch",
    "moe_gating_grouped_top_k",
    "moe_gating_top_k",
    "moe_gating_top_k_softmax",
    "quant_matmul",
    "quantise",
    "recv",
    "reduce_scatter",
    "rms_norm",
    "send",
    "split",
    "stream",
    "swiglu",
    "transpose",
    "transpose_batch_matmul",
    "use_npu_operators",
    "write_cache",
]
