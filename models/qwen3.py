"""Qwen3 dense as served for decode on Ascend NPUs: merged QKV, merged gate and up, paged key and value caches.

Hidden states are flat, [T, H]. With tensor parallelism all dies of a group hold the same tokens, each computes its
heads and its part of the MLP, and an AllReduce adds up.
"""

from torch import Tensor, nn

from models import ops
from models.configs import KVCache, Qwen3Config
from models.layers import AddRMSNorm, Embedding, Linear, RMSNorm, RotaryEmbedding
from models.metadata import ForwardMetadata


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
            attn_output = ops.all_reduce(attn_output, "attn_tp", self.attn_tp_size)
        return attn_output

    def split_heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[T, (N + 2 kv heads) D] -> [T, N, D] and twice [T, kv heads, D]."""
        by_head = qkv.view(qkv.shape[0], -1, self.head_dim)
        heads = (self.num_heads, self.num_key_value_heads, self.num_key_value_heads)
        query, key, value = ops.split(by_head, heads, self.exe_mode)
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
