"""Weights of the transformers implementation, renamed and reshaped into ours.

Where the two store weights otherwise:

| transformers | here | difference |
|---|---|---|
| `gate_proj`, `up_proj` | `gate_up_proj` | stacked along the outputs |
| `q_proj`, `k_proj`, `v_proj` (Qwen3, Qwen3-MoE) | `qkv_proj` | stacked along the outputs |
| `q_a_proj`, `q_b_proj`, `kv_a_proj_with_mqa` [out, in] | same names [in, out] | transposed for MLAProlog |
| `kv_b_proj` [N (nope + v), latent] | `kv_b_proj_w_k` [N, nope, latent], `kv_b_proj_w_v` [N, latent, v] | split |
| `q_a_layernorm`, `kv_a_layernorm` | same names | times sqrt(hidden / rank), the LoRA scales of LongCat-Flash |
| `experts.gate_up_proj` [E + Z, 2 I, H] | `experts.w13_weight` [E, H, 2 I] | transposed; zero experts (Z) own none |
| `experts.down_proj` [E, H, I] | `experts.w2_weight` [E, I, H] | transposed |
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def from_transformers(architecture: str, state: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
    """Full weights under our names, in the types of `state`.

    Args:
        architecture: key of `ARCHITECTURES`.
        state: `state_dict()` of transformers' model for causal language modelling.
        config: our configuration of the same dimensions.

    Returns:
        What `models.weights.install` puts into a model of any deployment.
    """
    result = dict(state)
    if architecture == "longcat_flash":
        q_scale = (config.hidden_size / config.q_lora_rank) ** 0.5
        kv_scale = (config.hidden_size / config.kv_lora_rank) ** 0.5
        _convert_mla(result, config, q_scale, kv_scale)
        _convert_experts(result, config.n_routed_experts)
    elif architecture == "deepseek_v3":
        _convert_mla(result, config)
        _convert_experts(result, config.n_routed_experts)
    elif architecture == "qwen3_moe":
        _convert_experts(result, config.num_experts)
    _stack(result, "gate_up_proj", ("gate_proj", "up_proj"))
    _stack(result, "qkv_proj", ("q_proj", "k_proj", "v_proj"))
    return result


def _convert_mla(state: dict[str, Tensor], config: Any, q_scale: float = 1.0, kv_scale: float = 1.0) -> None:
    for name in list(state):
        if name.endswith("q_a_layernorm.weight"):
            state[name] = state[name] * q_scale
        elif name.endswith("kv_a_layernorm.weight"):
            state[name] = state[name] * kv_scale
        elif name.endswith(("q_a_proj.weight", "q_b_proj.weight", "kv_a_proj_with_mqa.weight")):
            state[name] = state[name].t()
        elif name.endswith("kv_b_proj.weight"):
            by_head = state.pop(name).view(config.num_attention_heads, -1, config.kv_lora_rank)
            w_k, w_v = by_head.split([config.qk_nope_head_dim, config.v_head_dim], 1)
            prefix = name.removesuffix(".weight")
            state[f"{prefix}_w_k"] = w_k
            state[f"{prefix}_w_v"] = w_v.transpose(1, 2)


def _convert_experts(state: dict[str, Tensor], experts: int) -> None:
    for name in list(state):
        if name.endswith("experts.gate_up_proj"):
            stack = state.pop(name)[:experts]
            state[name.removesuffix("gate_up_proj") + "w13_weight"] = stack.transpose(1, 2)
        elif name.endswith("experts.down_proj"):
            stack = state.pop(name)
            state[name.removesuffix("down_proj") + "w2_weight"] = stack.transpose(1, 2)


def _stack(state: dict[str, Tensor], merged: str, names: tuple[str, ...]) -> None:
    """Replace the linears `names` of one module by their weights stacked along the outputs."""
    first = f".{names[0]}.weight"
    for key in [k for k in state if k.endswith(first)]:
        prefix = key.removesuffix(first)
        state[f"{prefix}.{merged}.weight"] = torch.cat([state.pop(f"{prefix}.{name}.weight") for name in names])
