"""Qwen3-MoE as served for decode on Ascend NPUs: merged QKV, paged key and value caches, experts in every layer.

Hidden states are flat, [T, H] with T tokens of this die. Dies that share heads bring their tokens together for the
attention; the experts see the tokens of all dies. Forward functions know the phase (`is_prefill`), but compute the
same in both: prefill is here for numerics only, a real deployment prefills with other kernels.
"""

import torch
from torch import Tensor, nn

from models import ops
from models.configs import KVCache, Qwen3MoeConfig
from models.layers import AddRMSNorm, Cut, Embedding, Linear, RMSNorm, RotaryEmbedding, parameter
from models.metadata import ForwardMetadata


class Qwen3MoeExperts(nn.Module):
    """The experts of this die as two stacks, gate and up merged in the first."""

    def __init__(self, config: Qwen3MoeConfig, routing: ops.Routing) -> None:
        super().__init__()
        self.routing = routing
        self.dtype = config.dtype
        hidden, inner = config.hidden_size, config.moe_intermediate_size
        experts = config.num_experts
        dtype = torch.int8 if config.deployment.quantised else config.dtype
        over_dies = Cut(0, "moe_ep", config.deployment.moe_ep_size)
        tp_size = config.deployment.moe_tp_size
        gate_up = (inner, inner)
        self.w13_weight = parameter(
            experts,
            hidden,
            2 * inner,
            dtype=dtype,
            fan_in=hidden,
            cuts=(over_dies, Cut(2, "moe_tp", tp_size, gate_up)),
        )
        self.w2_weight = parameter(
            experts, inner, hidden, dtype=dtype, fan_in=inner, cuts=(over_dies, Cut(1, "moe_tp", tp_size))
        )
        if config.deployment.quantised:
            self.w13_weight_scale = parameter(
                experts,
                2 * inner,
                dtype=torch.float32,
                kind="scale",
                fan_in=hidden,
                cuts=(over_dies, Cut(1, "moe_tp", tp_size, gate_up)),
            )
            self.w2_weight_scale = parameter(
                experts, hidden, dtype=config.dtype, kind="scale", fan_in=inner, cuts=(over_dies,)
            )
        else:
            self.register_parameter("w13_weight_scale", None)
            self.register_parameter("w2_weight_scale", None)

    def forward(self, x: Tensor, scale: Tensor | None, counts: Tensor) -> Tensor:
        """Rows sorted by expert [R, H] (int8 with scales [R] if quantised), rows per expert -> [R, H]."""
        merged = ops.grouped_matmul(x, self.w13_weight, counts, self.routing)
        x, scale = ops.activate(merged, scale, self.w13_weight_scale, counts, self.routing)
        return ops.grouped_matmul(x, self.w2_weight, counts, self.routing, scale, self.w2_weight_scale, self.dtype)


class Qwen3MoeSparseMoeBlock(nn.Module):
    """Experts over `moe_ep_size` dies, chosen by softmax probabilities."""

    def __init__(self, config: Qwen3MoeConfig) -> None:
        super().__init__()
        served = config.deployment
        self.quantised = served.quantised
        self.moe_tp_size = served.moe_tp_size
        self.top_k = config.num_experts_per_tok
        self.norm_topk_prob = config.norm_topk_prob
        self.routing = ops.Routing(config.num_experts, 0, self.top_k, served.moe_ep_size, self.moe_tp_size)
        self.gate = Linear(config, config.hidden_size, config.num_experts, dtype=torch.float32)
        self.experts = Qwen3MoeExperts(config, self.routing)

    def forward(self, hidden_states: Tensor, is_prefill: bool) -> Tensor:
        if self.moe_tp_size > 1:
            hidden_states = ops.all_gather(hidden_states, "moe_tp", self.moe_tp_size)
        router_input = ops.cast(hidden_states, torch.float32)
        router_logits = self.gate(router_input)
        topk_ids, topk_weights = ops.moe_gating_top_k_softmax(router_logits, self.top_k)
        if self.norm_topk_prob:
            topk_weights = topk_weights / topk_weights.sum(-1, keepdim=True)
        x, scale, order, counts = ops.moe_dispatch(hidden_states, topk_ids, self.routing, self.quantised)
        expert_out = self.experts(x, scale, counts)
        hidden_states = ops.moe_combine(expert_out, order, topk_ids, topk_weights, hidden_states, self.routing)
        if self.moe_tp_size > 1:
            hidden_states = ops.reduce_scatter(hidden_states, "moe_tp", self.moe_tp_size)
        return hidden_states


class Qwen3MoeAttention(nn.Module):
    """Grouped-query attention with norms on queries and keys, its heads cut over `attn_tp_size` dies."""

    def __init__(self, config: Qwen3MoeConfig) -> None:
        super().__init__()
        self.quantised = config.deployment.quantised
        self.attn_tp_size = config.deployment.attn_tp_size
        self.head_dim = config.head_dim
        self.num_heads = config.num_attention_heads // self.attn_tp_size
        self.num_key_value_heads = config.num_key_value_heads // self.attn_tp_size
        self.softmax_scale = config.head_dim**-0.5
        self.exe_mode = config.exe_mode
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
        if self.attn_tp_size > 1:
            hidden_states = ops.all_gather(hidden_states, "attn_tp", self.attn_tp_size)
        x, scale = ops.quantise(hidden_states, self.quantised)
        qkv = self.qkv_proj(x, scale)
        query, key, value = self.split_heads(qkv)
        query = self.q_norm(query)
        key = self.k_norm(key)
        query, key = ops.apply_rotary_pos_emb(query, key, cos, sin)
        key_cache, value_cache = ops.write_cache(
            key, value, key_cache, value_cache, forward_metadata.slot_mapping, self.exe_mode
        )
        attn_output = ops.fused_infer_attention_score(
            query, key_cache, value_cache, forward_metadata, self.softmax_scale
        )
        x, scale = ops.quantise(attn_output.flatten(1), self.quantised)
        attn_output = self.o_proj(x, scale)
        if self.attn_tp_size > 1:
            attn_output = ops.reduce_scatter(attn_output, "o_proj_tp", self.attn_tp_size)
        return attn_output

    def split_heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[T, (N + 2 kv heads) D] -> [T, N, D] and twice [T, kv heads, D]."""
        by_head = qkv.view(qkv.shape[0], -1, self.head_dim)
        heads = (self.num_heads, self.num_key_value_heads, self.num_key_value_heads)
        query, key, value = ops.split(by_head, heads, self.exe_mode)
        return query, key, value


class Qwen3MoeDecoderLayer(nn.Module):
    """Norm, attention, norm, experts; the residual is added inside the next norm."""

    def __init__(self, config: Qwen3MoeConfig) -> None:
        super().__init__()
        self.self_attn = Qwen3MoeAttention(config)
        self.mlp = Qwen3MoeSparseMoeBlock(config)
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


class Qwen3MoeModel(nn.Module):
    """Embedding, decoder layers, final norm."""

    def __init__(self, config: Qwen3MoeConfig) -> None:
        super().__init__()
        self.embed_tp_size = config.deployment.embed_tp_size
        self.embed_tokens = Embedding(config, config.vocab_size, config.hidden_size, ("embed_tp", self.embed_tp_size))
        self.rotary_emb = RotaryEmbedding(config, config.head_dim)
        self.layers = nn.ModuleList(Qwen3MoeDecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = AddRMSNorm(config, config.hidden_size)

    def forward(self, input_ids: Tensor, kv_caches: list[KVCache], forward_metadata: ForwardMetadata) -> Tensor:
        if self.embed_tp_size > 1:
            input_ids = ops.all_gather(input_ids, "embed_tp", self.embed_tp_size)
        hidden_states = self.embed_tokens(input_ids)
        if self.embed_tp_size > 1:
            hidden_states = ops.reduce_scatter(hidden_states, "embed_tp", self.embed_tp_size)
        position_embeddings = self.rotary_emb(forward_metadata.positions)
        residual = None
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            hidden_states, residual = layer(hidden_states, residual, position_embeddings, kv_cache, forward_metadata)
        hidden_states, residual = self.norm(hidden_states, residual)
        return hidden_states


class Qwen3MoeForCausalLM(nn.Module):
    """The whole model. Inputs are token ids [T]."""

    def __init__(self, config: Qwen3MoeConfig) -> None:
        super().__init__()
        self.config = config
        self.lmhead_tp_size = config.deployment.lmhead_tp_size
        self.model = Qwen3MoeModel(config)
        self.lm_head = Linear(config, config.hidden_size, config.vocab_size, column=("lmhead_tp", self.lmhead_tp_size))

    def forward(self, inputs: Tensor, kv_caches: list[KVCache], forward_metadata: ForwardMetadata) -> Tensor:
        """Logits of every token, [T, vocabulary]."""
        hidden_states = self.model(inputs, kv_caches, forward_metadata)
        if self.lmhead_tp_size > 1:
            hidden_states = ops.all_gather(hidden_states, "lmhead_tp", self.lmhead_tp_size)
        logits = self.lm_head(hidden_states)
        if self.lmhead_tp_size > 1:
            logits = self.tokens_for_vocabulary(logits)
        return logits

    def tokens_for_vocabulary(self, logits: Tensor) -> Tensor:
        """The own vocabulary of all tokens [size T, V / size] -> all of it for the own tokens [T, V]."""
        size = self.lmhead_tp_size
        exchanged = ops.all_to_all(logits, "lmhead_tp", size)
        by_token = ops.transpose(exchanged.view(size, -1, logits.shape[-1]))
        return by_token.view(-1, size * logits.shape[-1])
