"""Qwen3 dense as served for decode on Ascend NPUs: merged QKV, merged gate and up, paged key and value caches.

Hidden states are flat, [T, H]. With tensor parallelism all dies of a group hold the same tokens, each computes its
heads and its part of the MLP, and an AllReduce adds up.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from models import ops
from models.deployment import Deployment, context_problems
from models.layers import AddRMSNorm, Embedding, Linear, RMSNorm, RotaryEmbedding
from models.metadata import ForwardMetadata
from models.problems import Problem

KVCache = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Qwen3Config:
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
    deployment: Deployment = field(default=Deployment("unsharded"), metadata={"runtime": True})
    exe_mode: str = field(default="eager", metadata={"runtime": True})
    dtype: torch.dtype = field(default=torch.bfloat16, metadata={"runtime": True})
    enable_multi_stream: int = field(default=0, metadata={"runtime": True})
    enable_prefetch: bool = field(default=False, metadata={"runtime": True})
    enable_superkernel: bool = field(default=False, metadata={"runtime": True})

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
        if self.num_attention_heads % self.num_key_value_heads:
            message = f"{self.num_key_value_heads} does not divide num_attention_heads {self.num_attention_heads}"
            problems.append(Problem("error", "bad-value", message, key="model.config.num_key_value_heads"))
        if self.head_dim % 2:
            message = "RoPE rotates pairs, so the dimension must be even"
            problems.append(Problem("error", "bad-value", message, key="model.config.head_dim"))
        return problems

    def new_caches(self, blocks: int, device: torch.device) -> list[KVCache]:
        """One key and one value cache per layer, `blocks` pages each."""
        heads = self.num_key_value_heads // self.deployment.attn_tp_size
        shape = (blocks, self.deployment.block_size, heads, self.head_dim)
        return [
            (torch.zeros(shape, dtype=self.dtype, device=device), torch.zeros(shape, dtype=self.dtype, device=device))
            for _ in range(self.num_hidden_layers)
        ]


class Qwen3MLP(nn.Module):
    """Gated MLP."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.quantised = config.deployment.quantised
        self.dense_tp_size = config.deployment.dense_tp_size
        group = ("dense_tp", self.dense_tp_size)
        inner = config.intermediate_size
        self.gate_up_proj = Linear(
            config,
            config.hidden_size,
            2 * inner,
            quantised=self.quantised,
            dequantise=False,
            column=group,
            parts=(inner, inner),
        )
        self.down_proj = Linear(config, inner, config.hidden_size, quantised=self.quantised, row=group)

    def forward(self, hidden_states: Tensor, is_prefill: bool) -> Tensor:
        x, scale = ops.quantise(hidden_states, self.quantised)
        merged = self.gate_up_proj(x, scale)
        x, scale = ops.activate(merged, scale, self.gate_up_proj.weight_scale)
        hidden_states = self.down_proj(x, scale)
        if self.dense_tp_size > 1:
            hidden_states = ops.all_reduce(hidden_states, "dense_tp", self.dense_tp_size)
        return hidden_states


class Qwen3Attention(nn.Module):
    """Grouped-query attention with norms on queries and keys."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.quantised = config.deployment.quantised
        self.attn_tp_size = config.deployment.attn_tp_size
        self.head_dim = config.head_dim
        self.num_heads = config.num_attention_heads // self.attn_tp_size
        self.num_key_value_heads = config.num_key_value_heads // self.attn_tp_size
        self.softmax_scale = config.head_dim**-0.5
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.qkv_proj = Linear(
            config,
            config.hidden_size,
            queries + 2 * keys,
            quantised=self.quantised,
            column=("attn_tp", self.attn_tp_size),
            parts=(queries, keys, keys),
        )
        self.q_norm = RMSNorm(config, config.head_dim)
        self.k_norm = RMSNorm(config, config.head_dim)
        self.o_proj = Linear(
            config,
            queries,
            config.hidden_size,
            quantised=self.quantised,
            row=("o_proj_tp", config.deployment.o_proj_tp_size),
        )

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        kv_cache: KVCache,
        forward_metadata: ForwardMetadata,
    ) -> Tensor:
        cos, sin = position_embeddings
        key_cache, value_cache = kv_cache
        x, scale = ops.quantise(hidden_states, self.quantised)
        qkv = self.qkv_proj(x, scale)
        query, key, value = self.split_heads(qkv)
        query = self.q_norm(query)
        key = self.k_norm(key)
        query, key = ops.apply_rotary_pos_emb(query, key, cos, sin)
        key_cache, value_cache = ops.write_cache(key, value, key_cache, value_cache, forward_metadata.slot_mapping)
        attn_output = ops.fused_infer_attention_score(
            query, key_cache, value_cache, forward_metadata, self.softmax_scale
        )
        x, scale = ops.quantise(attn_output.flatten(1), self.quantised)
        attn_output = self.o_proj(x, scale)
        if self.attn_tp_size > 1:
            attn_output = ops.all_reduce(attn_output, "attn_tp", self.attn_tp_size)
        return attn_output

    def split_heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[T, (N + 2 kv heads) D] -> [T, N, D] and twice [T, kv heads, D]."""
        by_head = qkv.view(qkv.shape[0], -1, self.head_dim)
        query, key, value = by_head.split([self.num_heads, self.num_key_value_heads, self.num_key_value_heads], 1)
        return query, key, value


class Qwen3DecoderLayer(nn.Module):
    """Norm, attention, norm, MLP; the residual is added inside the next norm."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.self_attn = Qwen3Attention(config)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = AddRMSNorm(config, config.hidden_size)
        self.post_attention_layernorm = AddRMSNorm(config, config.hidden_size)

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor | None,
        position_embeddings: tuple[Tensor, Tensor],
        kv_cache: KVCache,
        forward_metadata: ForwardMetadata,
    ) -> tuple[Tensor, Tensor]:
        hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(hidden_states, position_embeddings, kv_cache, forward_metadata)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        hidden_states = self.mlp(hidden_states, forward_metadata.is_prefill)
        return hidden_states, residual


class Qwen3Model(nn.Module):
    """Embedding, decoder layers, final norm."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.embed_tp_size = config.deployment.embed_tp_size
        self.embed_tokens = Embedding(config, config.vocab_size, config.hidden_size, ("embed_tp", self.embed_tp_size))
        self.rotary_emb = RotaryEmbedding(config, config.head_dim)
        self.layers = nn.ModuleList(Qwen3DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = AddRMSNorm(config, config.hidden_size)

    def forward(self, input_ids: Tensor, kv_caches: list[KVCache], forward_metadata: ForwardMetadata) -> Tensor:
        hidden_states = self.embed_tokens(input_ids)
        if self.embed_tp_size > 1:
            hidden_states = ops.all_reduce(hidden_states, "embed_tp", self.embed_tp_size)
        position_embeddings = self.rotary_emb(forward_metadata.positions)
        residual = None
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            hidden_states, residual = layer(hidden_states, residual, position_embeddings, kv_cache, forward_metadata)
        hidden_states, residual = self.norm(hidden_states, residual)
        return hidden_states


class Qwen3ForCausalLM(nn.Module):
    """The whole model. Inputs are token ids [T]."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.config = config
        self.lmhead_tp_size = config.deployment.lmhead_tp_size
        self.model = Qwen3Model(config)
        self.lm_head = Linear(config, config.hidden_size, config.vocab_size, column=("lmhead_tp", self.lmhead_tp_size))

    def forward(self, inputs: Tensor, kv_caches: list[KVCache], forward_metadata: ForwardMetadata) -> Tensor:
        """Logits of every token, [T, vocabulary]."""
        hidden_states = self.model(inputs, kv_caches, forward_metadata)
        logits = self.lm_head(hidden_states)
        if self.lmhead_tp_size > 1:
            logits = self.gather_vocabulary(logits)
        return logits

    def gather_vocabulary(self, logits: Tensor) -> Tensor:
        """The own vocabulary [T, V / size] -> all of it [T, V]."""
        gathered = ops.all_gather(logits, "lmhead_tp", self.lmhead_tp_size)
        by_token = ops.transpose(gathered.view(self.lmhead_tp_size, *logits.shape))
        return by_token.view(logits.shape[0], -1)
