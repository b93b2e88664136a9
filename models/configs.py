"""Configurations: dimensions named as in the checkpoint's config.json, and how the model is run."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from models.deployment import Deployment, context_problems
from models.problems import Problem
from models.records import read_record
from models.rope import YarnScaling

KVCache = tuple[Tensor, Tensor]


_RUNTIME = {"runtime": True}  # the loader sets the field, not the user's `model.config`


@dataclass(frozen=True, kw_only=True)
class RuntimeFields:
    """How a model is run.

    Attributes:
        deployment: how it is served.
        exe_mode: `eager`, `ge_graph` or `npugraph_ex`, as declared: code reads this, never the device.
        dtype: of weights and activations that are not quantised.
        enable_multi_stream: the deployment's `multi_stream`.
        enable_prefetch, enable_superkernel: switches of rewritten source; the models here do not read them.
    """

    deployment: Deployment = field(default=Deployment("unsharded"), metadata=_RUNTIME)
    exe_mode: str = field(default="eager", metadata=_RUNTIME)
    dtype: torch.dtype = field(default=torch.bfloat16, metadata=_RUNTIME)
    enable_multi_stream: int = field(default=0, metadata=_RUNTIME)
    enable_prefetch: bool = field(default=False, metadata=_RUNTIME)
    enable_superkernel: bool = field(default=False, metadata=_RUNTIME)


@dataclass(frozen=True, kw_only=True)
class LongcatFlashConfig(RuntimeFields):
    """Dimensions, named as in the checkpoint's config.json, and how the model is run."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_attention_heads: int
    ffn_hidden_size: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    moe_topk: int
    n_routed_experts: int
    zero_expert_num: int
    expert_ffn_hidden_size: int
    routed_scaling_factor: float
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int

    @property
    def attention_sequences(self) -> int:
        """Sequences whose keys and values this die holds: dies that share heads share their sequences too."""
        return self.deployment.batch_size * self.deployment.attn_tp_size

    def problems(self) -> list[Problem]:
        """Parallel sizes that do not divide the dimension that they cut, and impossible dimensions."""
        cuts = {
            "attn_tp_size": ("num_attention_heads", self.num_attention_heads),
            "o_proj_tp_size": ("num_attention_heads", self.num_attention_heads),
            "dense_tp_size": ("ffn_hidden_size", self.ffn_hidden_size),
            "moe_ep_size": ("n_routed_experts", self.n_routed_experts),
            "moe_tp_size": ("expert_ffn_hidden_size", self.expert_ffn_hidden_size),
            "embed_tp_size": ("vocab_size", self.vocab_size),
            "lmhead_tp_size": ("vocab_size", self.vocab_size),
        }
        problems = _cut_problems(self.deployment, cuts)
        if self.moe_topk > self.n_routed_experts + self.zero_expert_num:
            message = f"{self.moe_topk} experts per token, but there are fewer"
            problems.append(Problem("error", "bad-value", message, key="model.config.moe_topk"))
        problems += context_problems(self.deployment, self.max_position_embeddings)
        if self.qk_rope_head_dim % 2:
            message = "RoPE rotates pairs, so the dimension must be even"
            problems.append(Problem("error", "bad-value", message, key="model.config.qk_rope_head_dim"))
        return problems

    def new_caches(self, blocks: int, device: torch.device) -> list[KVCache]:
        """One latent cache and one RoPE cache per attention, `blocks` pages each."""
        page = (blocks, self.deployment.block_size, 1)
        attentions = 0 if self.deployment.role == "ffn" else 2 * self.num_layers
        return _caches(attentions, (*page, self.kv_lora_rank), (*page, self.qk_rope_head_dim), self.dtype, device)


@dataclass(frozen=True, kw_only=True)
class DeepseekV3Config(RuntimeFields):
    """Dimensions, named as in the checkpoint's config.json, and how the model is run."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    n_shared_experts: int
    n_routed_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    first_k_dense_replace: int
    routed_scaling_factor: float
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None = None
    max_position_embeddings: int

    @property
    def attention_sequences(self) -> int:
        """Sequences whose keys and values this die holds: dies that share heads share their sequences too."""
        return self.deployment.batch_size * self.deployment.attn_tp_size

    @property
    def yarn(self) -> YarnScaling | None:
        """`rope_scaling`, read."""
        if self.rope_scaling is None:
            return None
        return YarnScaling(**read_record(YarnScaling, self.rope_scaling, "model.config.rope_scaling")[0])

    def problems(self) -> list[Problem]:
        """Parallel sizes that do not divide the dimension that they cut, and impossible dimensions."""
        cuts = {
            "attn_tp_size": ("num_attention_heads", self.num_attention_heads),
            "o_proj_tp_size": ("num_attention_heads", self.num_attention_heads),
            "dense_tp_size": ("intermediate_size", self.intermediate_size),
            "moe_ep_size": ("n_routed_experts", self.n_routed_experts),
            "moe_tp_size": ("moe_intermediate_size", self.moe_intermediate_size),
            "embed_tp_size": ("vocab_size", self.vocab_size),
            "lmhead_tp_size": ("vocab_size", self.vocab_size),
        }
        problems = _cut_problems(self.deployment, cuts) + _role_problems(self.deployment, "DeepSeek-V3")

        def bad(name: str, message: str, fix: str = "") -> None:
            problems.append(Problem("error", "bad-value", message, fix, f"model.config.{name}"))

        in_group = self.n_routed_experts // self.n_group
        if self.n_routed_experts % self.n_group or in_group < 2:
            bad("n_group", f"{self.n_group} groups of equal size, 2 or more each, do not make {self.n_routed_experts}")
        if self.topk_group > self.n_group:
            bad("topk_group", f"{self.topk_group} of {self.n_group} groups", "Give n_group or fewer.")
        elif self.num_experts_per_tok > self.topk_group * in_group:
            bad("num_experts_per_tok", f"{self.num_experts_per_tok} experts, but the chosen groups have fewer")
        if not self.norm_topk_prob:
            bad("norm_topk_prob", "MoeGatingTopK divides sigmoid scores by their sum", "Give true.")
        if self.qk_rope_head_dim % 2:
            bad("qk_rope_head_dim", "RoPE rotates pairs, so the dimension must be even")
        if self.rope_scaling is not None:
            problems += read_record(YarnScaling, self.rope_scaling, "model.config.rope_scaling")[1]
        return problems + context_problems(self.deployment, self.max_position_embeddings)

    def new_caches(self, blocks: int, device: torch.device) -> list[KVCache]:
        """One latent cache and one RoPE cache per layer, `blocks` pages each."""
        page = (blocks, self.deployment.block_size, 1)
        latent, rope = (*page, self.kv_lora_rank), (*page, self.qk_rope_head_dim)
        return _caches(self.num_hidden_layers, latent, rope, self.dtype, device)


@dataclass(frozen=True, kw_only=True)
class Qwen3Config(RuntimeFields):
    """Dimensions, named as in the checkpoint's config.json, and how the model is run."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int

    @property
    def attention_sequences(self) -> int:
        """Sequences whose keys and values this die holds."""
        return self.deployment.batch_size

    def problems(self) -> list[Problem]:
        """Parallel sizes that do not divide the dimension that they cut, or that a dense model does not have."""
        problems = []

        def bad(name: str, message: str, fix: str) -> None:
            problems.append(Problem("error", "bad-value", message, fix, f"deployment.{name}"))

        served = self.deployment
        cuts = {
            "attn_tp_size": ("num_key_value_heads", self.num_key_value_heads),
            "dense_tp_size": ("intermediate_size", self.intermediate_size),
            "embed_tp_size": ("vocab_size", self.vocab_size),
            "lmhead_tp_size": ("vocab_size", self.vocab_size),
        }
        for size_name, (name, value) in cuts.items():
            size = getattr(served, size_name)
            if value % size:
                bad(size_name, f"{size} does not divide {name} {value}", "Give a divisor.")
            if size not in (1, served.attn_tp_size):
                bad(size_name, f"{size} differs from attn_tp_size {served.attn_tp_size}", "One group serves Qwen3.")
        for size_name in ("moe_ep_size", "moe_tp_size"):
            if getattr(served, size_name) > 1:
                bad(size_name, "Qwen3 dense has no experts", "Give 1.")
        if served.o_proj_tp_size != served.attn_tp_size:
            bad("o_proj_tp_size", f"{served.o_proj_tp_size} differs from attn_tp_size", "Give attn_tp_size.")
        if served.role != "all":
            bad("role", "Qwen3 dense has no FFN side to disaggregate", "Give all.")
        problems += context_problems(served, self.max_position_embeddings)
        return problems + _head_problems(self.num_attention_heads, self.num_key_value_heads, self.head_dim)

    def new_caches(self, blocks: int, device: torch.device) -> list[KVCache]:
        """One key and one value cache per layer, `blocks` pages each."""
        heads = self.num_key_value_heads // self.deployment.attn_tp_size
        shape = (blocks, self.deployment.block_size, heads, self.head_dim)
        return _caches(self.num_hidden_layers, shape, shape, self.dtype, device)


@dataclass(frozen=True, kw_only=True)
class Qwen3MoeConfig(RuntimeFields):
    """Dimensions, named as in the checkpoint's config.json, and how the model is run. All layers have experts."""

    vocab_size: int
    hidden_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int

    @property
    def attention_sequences(self) -> int:
        """Sequences whose keys and values this die holds: dies that share heads share their sequences too."""
        return self.deployment.batch_size * self.deployment.attn_tp_size

    def problems(self) -> list[Problem]:
        """Parallel sizes that do not divide the dimension that they cut, and impossible dimensions."""
        served = self.deployment
        cuts = {
            "attn_tp_size": ("num_key_value_heads", self.num_key_value_heads),
            "moe_ep_size": ("num_experts", self.num_experts),
            "moe_tp_size": ("moe_intermediate_size", self.moe_intermediate_size),
            "embed_tp_size": ("vocab_size", self.vocab_size),
            "lmhead_tp_size": ("vocab_size", self.vocab_size),
        }
        problems = _cut_problems(served, cuts) + _role_problems(served, "Qwen3-MoE")

        def bad(key: str, message: str, fix: str = "") -> None:
            problems.append(Problem("error", "bad-value", message, fix, key))

        if served.o_proj_tp_size != served.attn_tp_size:
            bad("deployment.o_proj_tp_size", f"{served.o_proj_tp_size} differs from attn_tp_size", "Give attn_tp_size.")
        if served.dense_tp_size > 1:
            bad("deployment.dense_tp_size", "Qwen3-MoE has no dense MLP", "Give 1.")
        if self.num_experts_per_tok > self.num_experts:
            bad(
                "model.config.num_experts_per_tok", f"{self.num_experts_per_tok} experts per token, but there are fewer"
            )
        problems += _head_problems(self.num_attention_heads, self.num_key_value_heads, self.head_dim)
        return problems + context_problems(served, self.max_position_embeddings)

    def new_caches(self, blocks: int, device: torch.device) -> list[KVCache]:
        """One key and one value cache per layer, `blocks` pages each."""
        heads = self.num_key_value_heads // self.deployment.attn_tp_size
        shape = (blocks, self.deployment.block_size, heads, self.head_dim)
        return _caches(self.num_hidden_layers, shape, shape, self.dtype, device)


def _cut_problems(served: Deployment, cuts: dict[str, tuple[str, int]]) -> list[Problem]:
    """Parallel size -> (dimension that it cuts, its value)."""
    return [
        Problem("error", "bad-value", f"{size} does not divide {name} {value}", "Give a divisor.", f"deployment.{key}")
        for key, (name, value) in cuts.items()
        if value % (size := getattr(served, key))
    ]


def _role_problems(served: Deployment, model: str) -> list[Problem]:
    if served.role == "all":
        return []
    message = f"{model} is served here without disaggregation of attention and FFN"
    return [Problem("error", "bad-value", message, "Give all.", "deployment.role")]


def _head_problems(heads: int, key_value_heads: int, head_dim: int) -> list[Problem]:
    problems = []
    if heads % key_value_heads:
        message = f"{key_value_heads} does not divide num_attention_heads {heads}"
        problems.append(Problem("error", "bad-value", message, key="model.config.num_key_value_heads"))
    if head_dim % 2:
        message = "RoPE rotates pairs, so the dimension must be even"
        problems.append(Problem("error", "bad-value", message, key="model.config.head_dim"))
    return problems


def _caches(
    count: int, first: tuple[int, ...], second: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> list[KVCache]:
    """`count` pairs of empty caches."""
    return [
        (torch.zeros(first, dtype=dtype, device=device), torch.zeros(second, dtype=dtype, device=device))
        for _ in range(count)
    ]
