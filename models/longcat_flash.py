"""LongCat-Flash as served for decode on Ascend NPUs.

A layer holds two MLA attentions with absorbed keys and values, two dense MLPs, and one mixture of experts with zero
experts, whose result joins at the end of the layer (shortcut): it runs on a stream of its own beside the dense path.
Hidden states are flat, [T, H] with T tokens of this die. Forward functions know the phase (`is_prefill`), but compute
the same in both: prefill is here for numerics only, a real deployment prefills with other kernels.
"""

import torch
from torch import Tensor, nn

from models import ops
from models.configs import KVCache, LongcatFlashConfig
from models.layers import AddRMSNorm, Cut, Embedding, InputMajorLinear, Linear, RMSNorm, RotaryEmbedding, parameter
from models.metadata import ForwardMetadata


class LongcatFlashMLP(nn.Module):
    """Dense MLP, cut over `dense_tp_size` dies that bring their tokens together."""

    def __init__(self, config: LongcatFlashConfig) -> None:
        super().__init__()
        self.quantised = config.deployment.quantised
        self.dense_tp_size = config.deployment.dense_tp_size
        group = ("dense_tp", self.dense_tp_size)
        self.gate_up_proj = Linear(
            config,
            config.hidden_size,
            2 * config.ffn_hidden_size,
            quantised=self.quantised,
            dequantise=False,
            column=group,
            parts=(config.ffn_hidden_size, config.ffn_hidden_size),
        )
        self.down_proj = Linear(config, config.ffn_hidden_size, config.hidden_size, quantised=self.quantised, row=group)

    def forward(self, hidden_states: Tensor, is_prefill: bool) -> Tensor:
        if self.dense_tp_size > 1:
            hidden_states = ops.all_gather(hidden_states, "dense_tp", self.dense_tp_size)
        x, scale = ops.quantise(hidden_states, self.quantised)
        merged = self.gate_up_proj(x, scale)
        x, scale = ops.activate(merged, scale, self.gate_up_proj.weight_scale)
        hidden_states = self.down_proj(x, scale)
        if self.dense_tp_size > 1:
            hidden_states = ops.reduce_scatter(hidden_states, "dense_tp", self.dense_tp_size)
        return hidden_states


class LongcatFlashTopkRouter(nn.Module):
    """Scores all experts, zero experts included, in float32."""

    def __init__(self, config: LongcatFlashConfig) -> None:
        super().__init__()
        self.top_k = config.moe_topk
        self.routed_scaling_factor = config.routed_scaling_factor
        experts = config.n_routed_experts + config.zero_expert_num
        self.classifier = Linear(config, config.hidden_size, experts, dtype=torch.float32)
        self.e_score_correction_bias = parameter(experts, dtype=torch.float32, kind="bias")

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """[T, H] -> expert ids and weights, both [T, k]."""
        router_input = ops.cast(hidden_states, torch.float32)
        router_logits = self.classifier(router_input)
        return ops.moe_gating_top_k(router_logits, self.e_score_correction_bias, self.top_k, self.routed_scaling_factor)


class LongcatFlashExperts(nn.Module):
    """The experts of this die as two stacks, gate and up merged in the first."""

    def __init__(self, config: LongcatFlashConfig, routing: ops.Routing) -> None:
        super().__init__()
        self.routing = routing
        self.dtype = config.dtype
        hidden, inner = config.hidden_size, config.expert_ffn_hidden_size
        experts = config.n_routed_experts
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


class LongcatFlashMoE(nn.Module):
    """Mixture of experts over `moe_ep_size` dies; zero experts return their input."""

    def __init__(self, config: LongcatFlashConfig) -> None:
        super().__init__()
        self.quantised = config.deployment.quantised
        self.moe_tp_size = config.deployment.moe_tp_size
        self.routing = ops.Routing(
            config.n_routed_experts,
            config.zero_expert_num,
            config.moe_topk,
            config.deployment.moe_ep_size,
            self.moe_tp_size,
        )
        self.router = LongcatFlashTopkRouter(config)
        self.experts = LongcatFlashExperts(config, self.routing)

    def forward(self, hidden_states: Tensor, is_prefill: bool) -> Tensor:
        if self.moe_tp_size > 1:
            hidden_states = ops.all_gather(hidden_states, "moe_tp", self.moe_tp_size)
        topk_ids, topk_weights = self.router(hidden_states)
        x, scale, order, counts = ops.moe_dispatch(hidden_states, topk_ids, self.routing, self.quantised)
        expert_out = self.experts(x, scale, counts)
        hidden_states = ops.moe_combine(expert_out, order, topk_ids, topk_weights, hidden_states, self.routing)
        if self.moe_tp_size > 1:
            hidden_states = ops.reduce_scatter(hidden_states, "moe_tp", self.moe_tp_size)
        return hidden_states


class LongcatFlashAttention(nn.Module):
    """MLA on compressed keys and values: kv_b is split and absorbed into the query and the output.

    The LoRA scales sqrt(hidden / rank) are folded into the two inner norms when weights are loaded. With
    `attn_tp_size` > 1 the dies of a group bring their tokens together and each computes its heads; with
    `o_proj_tp_size` > 1 alone they exchange heads against tokens before o_proj.
    """

    def __init__(self, config: LongcatFlashConfig) -> None:
        super().__init__()
        heads, latent = config.num_attention_heads, config.kv_lora_rank
        nope, rope, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        self.attn_tp_size = config.deployment.attn_tp_size
        self.o_proj_tp_size = config.deployment.o_proj_tp_size
        self.softmax_scale = (nope + rope) ** -0.5
        group = ("attn_tp", self.attn_tp_size)
        self.q_a_proj = InputMajorLinear(config, config.hidden_size, config.q_lora_rank)
        self.q_a_layernorm = RMSNorm(config, config.q_lora_rank, 1e-6)
        self.q_b_proj = InputMajorLinear(config, config.q_lora_rank, heads * (nope + rope), column=group)
        self.kv_a_proj_with_mqa = InputMajorLinear(config, config.hidden_size, latent + rope)
        self.kv_a_layernorm = RMSNorm(config, latent, 1e-6)
        own_heads = (Cut(0, *group),)
        self.kv_b_proj_w_k = parameter(heads, nope, latent, dtype=config.dtype, fan_in=latent, cuts=own_heads)
        self.kv_b_proj_w_v = parameter(heads, latent, value, dtype=config.dtype, fan_in=latent, cuts=own_heads)
        self.o_proj = Linear(config, heads * value, config.hidden_size, row=("o_proj_tp", self.o_proj_tp_size))

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        kv_cache: KVCache,
        forward_metadata: ForwardMetadata,
    ) -> Tensor:
        cos, sin = position_embeddings
        nope_cache, rope_cache = kv_cache
        if self.attn_tp_size > 1:
            hidden_states = ops.all_gather(hidden_states, "attn_tp", self.attn_tp_size)
        q_nope, q_rope = ops.mla_prolog(
            hidden_states,
            self.q_a_proj.weight,
            self.q_b_proj.weight,
            self.kv_a_proj_with_mqa.weight,
            self.kv_b_proj_w_k,
            self.q_a_layernorm.weight,
            self.kv_a_layernorm.weight,
            cos,
            sin,
            forward_metadata.slot_mapping,
            nope_cache,
            rope_cache,
            self.q_a_layernorm.epsilon,
        )
        attn_output = ops.fused_infer_attention_score(
            q_nope, nope_cache, nope_cache, forward_metadata, self.softmax_scale, q_rope, rope_cache
        )
        attn_output = ops.transpose_batch_matmul(attn_output, self.kv_b_proj_w_v)
        if self.o_proj_tp_size > 1 and self.attn_tp_size == 1:
            attn_output = self.heads_for_tokens(attn_output)
        attn_output = self.o_proj(attn_output)
        if self.o_proj_tp_size > 1:
            attn_output = ops.reduce_scatter(attn_output, "o_proj_tp", self.o_proj_tp_size)
        return attn_output

    def heads_for_tokens(self, attn_output: Tensor) -> Tensor:
        """All heads of the own tokens [T, N V] -> the own heads of all tokens [size T, N V / size]."""
        tokens, size = attn_output.shape[0], self.o_proj_tp_size
        by_rank = ops.transpose(attn_output.view(tokens, size, -1))
        exchanged = ops.all_to_all(by_rank.view(size * tokens, -1), "o_proj_tp", size)
        return exchanged


class LongcatFlashDecoderLayer(nn.Module):
    """attention 0 -> [experts on stream `moe`] beside [dense MLP 0 -> attention 1 -> dense MLP 1] -> join."""

    def __init__(self, config: LongcatFlashConfig) -> None:
        super().__init__()
        limits = {label: (aic, aiv) for label, (aic, aiv) in config.deployment.core_limits.items()}
        self.multi_stream = config.enable_multi_stream > 0
        self.moe_cores = limits.get("moe")
        self.main_cores = limits.get("main")
        self.role = config.deployment.role
        if self.role == "all":
            self.mlp = LongcatFlashMoE(config)
        self.self_attn = nn.ModuleList(LongcatFlashAttention(config) for _ in range(2))
        self.mlps = nn.ModuleList(LongcatFlashMLP(config) for _ in range(2))
        self.input_layernorm = nn.ModuleList(AddRMSNorm(config, config.hidden_size) for _ in range(2))
        self.post_attention_layernorm = nn.ModuleList(AddRMSNorm(config, config.hidden_size) for _ in range(2))

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor | None,
        position_embeddings: tuple[Tensor, Tensor],
        kv_caches: list[KVCache],
        forward_metadata: ForwardMetadata,
    ) -> tuple[Tensor, Tensor]:
        is_prefill = forward_metadata.is_prefill
        two_streams = self.multi_stream and self.role == "all" and not is_prefill

        hidden_states, residual = self.input_layernorm[0](hidden_states, residual)
        hidden_states = self.self_attn[0](hidden_states, position_embeddings, kv_caches[0], forward_metadata)
        hidden_states, residual = self.post_attention_layernorm[0](hidden_states, residual)

        if self.role == "attention":
            sent = ops.send(hidden_states)
        else:
            with ops.stream("moe", two_streams), ops.limit_cores(self.moe_cores, two_streams):
                shortcut_output = self.mlp(hidden_states, is_prefill)

        with ops.limit_cores(self.main_cores, two_streams):
            hidden_states = self.mlps[0](hidden_states, is_prefill)
            hidden_states, residual = self.input_layernorm[1](hidden_states, residual)
            hidden_states = self.self_attn[1](hidden_states, position_embeddings, kv_caches[1], forward_metadata)
            hidden_states, residual = self.post_attention_layernorm[1](hidden_states, residual)
            hidden_states = self.mlps[1](hidden_states, is_prefill)

        if self.role == "attention":
            shortcut_output = ops.recv(sent)
        ops.join("moe", two_streams)
        hidden_states = ops.add(hidden_states, shortcut_output)
        return hidden_states, residual


class LongcatFlashModel(nn.Module):
    """Embedding, decoder layers, final norm."""

    def __init__(self, config: LongcatFlashConfig) -> None:
        super().__init__()
        self.embed_tp_size = config.deployment.embed_tp_size
        self.embed_tokens = Embedding(config, config.vocab_size, config.hidden_size, ("embed_tp", self.embed_tp_size))
        self.rotary_emb = RotaryEmbedding(config, config.qk_rope_head_dim)
        self.layers = nn.ModuleList(LongcatFlashDecoderLayer(config) for _ in range(config.num_layers))
        self.norm = AddRMSNorm(config, config.hidden_size)

    def forward(self, input_ids: Tensor, kv_caches: list[KVCache], forward_metadata: ForwardMetadata) -> Tensor:
        if self.embed_tp_size > 1:
            input_ids = ops.all_gather(input_ids, "embed_tp", self.embed_tp_size)
        hidden_states = self.embed_tokens(input_ids)
        if self.embed_tp_size > 1:
            hidden_states = ops.reduce_scatter(hidden_states, "embed_tp", self.embed_tp_size)
        position_embeddings = self.rotary_emb(forward_metadata.positions)
        residual = None
        for i, layer in enumerate(self.layers):
            layer_caches = kv_caches[2 * i : 2 * i + 2]
            hidden_states, residual = layer(
                hidden_states, residual, position_embeddings, layer_caches, forward_metadata
            )
        hidden_states, residual = self.norm(hidden_states, residual)
        return hidden_states


class LongcatFlashFFNLayer(nn.Module):
    """One layer of the FFN side of a disaggregated deployment: only the experts."""

    def __init__(self, config: LongcatFlashConfig) -> None:
        super().__init__()
        self.mlp = LongcatFlashMoE(config)

    def forward(self, hidden_states: Tensor, is_prefill: bool) -> Tensor:
        hidden_states = ops.recv(hidden_states)
        hidden_states = self.mlp(hidden_states, is_prefill)
        hidden_states = ops.send(hidden_states)
        return hidden_states


class LongcatFlashFFNModel(nn.Module):
    """The FFN side: each layer receives hidden states from the attention side and sends the experts' result back."""

    def __init__(self, config: LongcatFlashConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(LongcatFlashFFNLayer(config) for _ in range(config.num_layers))

    def forward(self, hidden_states: Tensor, kv_caches: list[KVCache], forward_metadata: ForwardMetadata) -> Tensor:
        for layer in self.layers:
            hidden_states = layer(hidden_states, forward_metadata.is_prefill)
        return hidden_states


class LongcatFlashForCausalLM(nn.Module):
    """The whole model of a role. Inputs are token ids [T]; hidden states [T, H] on the FFN side."""

    def __init__(self, config: LongcatFlashConfig) -> None:
        super().__init__()
        self.config = config
        self.lmhead_tp_size = config.deployment.lmhead_tp_size
        if config.deployment.role == "ffn":
            self.model: nn.Module = LongcatFlashFFNModel(config)
            self.lm_head = None
        else:
            self.model = LongcatFlashModel(config)
            self.lm_head = Linear(
                config, config.hidden_size, config.vocab_size, column=("lmhead_tp", self.lmhead_tp_size)
            )

    def forward(self, inputs: Tensor, kv_caches: list[KVCache], forward_metadata: ForwardMetadata) -> Tensor:
        """Logits of every token, [T, vocabulary]; hidden states [T, H] on the FFN side."""
        hidden_states = self.model(inputs, kv_caches, forward_metadata)
        if self.lm_head is None:
            return hidden_states
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
