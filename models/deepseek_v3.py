"""DeepSeek-V3 (and DeepSeek-R1, which has the same architecture) as served for decode on Ascend NPUs.

MLA with absorbed keys and values in every layer; the first layers have a dense MLP, all others a mixture of experts
with a shared expert, which runs on a stream of its own beside the routed ones. Every die attends to its own
sequences. Hidden states are flat, [T, H] with T tokens of this die. Forward functions know the phase (`is_prefill`),
but compute the same in both: prefill is here for numerics only, a real deployment prefills with other kernels.
"""

import torch
from torch import Tensor, nn

from models import ops
from models.configs import DeepseekV3Config, KVCache
from models.layers import AddRMSNorm, Cut, Embedding, InputMajorLinear, Linear, RMSNorm, RotaryEmbedding, parameter
from models.metadata import ForwardMetadata


class DeepseekV3MLP(nn.Module):
    """Dense MLP of the first layers, cut over `dense_tp_size` dies that bring their tokens together."""

    def __init__(self, config: DeepseekV3Config) -> None:
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
        if self.dense_tp_size > 1:
            hidden_states = ops.all_gather(hidden_states, "dense_tp", self.dense_tp_size)
        x, scale = ops.quantise(hidden_states, self.quantised)
        merged = self.gate_up_proj(x, scale)
        x, scale = ops.activate(merged, scale, self.gate_up_proj.weight_scale)
        hidden_states = self.down_proj(x, scale)
        if self.dense_tp_size > 1:
            hidden_states = ops.reduce_scatter(hidden_states, "dense_tp", self.dense_tp_size)
        return hidden_states


class DeepseekV3SharedExperts(nn.Module):
    """The experts that every token goes through, as one MLP; cut like the routed ones, over `moe_tp_size` dies."""

    def __init__(self, config: DeepseekV3Config) -> None:
        super().__init__()
        self.quantised = config.deployment.quantised
        group = ("moe_tp", config.deployment.moe_tp_size)
        inner = config.moe_intermediate_size * config.n_shared_experts
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
        return hidden_states


class DeepseekV3Experts(nn.Module):
    """The routed experts of this die as two stacks, gate and up merged in the first."""

    def __init__(self, config: DeepseekV3Config, routing: ops.Routing) -> None:
        super().__init__()
        self.routing = routing
        self.dtype = config.dtype
        hidden, inner = config.hidden_size, config.moe_intermediate_size
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


class DeepseekV3Gate(Linear):
    """Scores the routed experts in float32; the bias only steers which are chosen."""

    def __init__(self, config: DeepseekV3Config) -> None:
        super().__init__(config, config.hidden_size, config.n_routed_experts, dtype=torch.float32)
        self.e_score_correction_bias = parameter(config.n_routed_experts, dtype=torch.float32, kind="bias")


class DeepseekV3MoE(nn.Module):
    """Routed experts over `moe_ep_size` dies, chosen by sigmoid scores within the best groups, and shared ones."""

    def __init__(self, config: DeepseekV3Config) -> None:
        super().__init__()
        served = config.deployment
        limits = {label: (aic, aiv) for label, (aic, aiv) in served.core_limits.items()}
        self.shared_cores = limits.get("shared_experts")
        self.main_cores = limits.get("main")
        self.multi_stream = config.enable_multi_stream > 0
        self.quantised = served.quantised
        self.moe_tp_size = served.moe_tp_size
        self.top_k = config.num_experts_per_tok
        self.groups = config.n_group
        self.top_groups = config.topk_group
        self.routed_scaling_factor = config.routed_scaling_factor
        self.routing = ops.Routing(config.n_routed_experts, 0, self.top_k, served.moe_ep_size, self.moe_tp_size)
        self.gate = DeepseekV3Gate(config)
        self.experts = DeepseekV3Experts(config, self.routing)
        self.shared_experts = DeepseekV3SharedExperts(config)

    def forward(self, hidden_states: Tensor, is_prefill: bool) -> Tensor:
        two_streams = self.multi_stream and not is_prefill
        if self.moe_tp_size > 1:
            hidden_states = ops.all_gather(hidden_states, "moe_tp", self.moe_tp_size)

        with ops.stream("shared_experts", two_streams), ops.limit_cores(self.shared_cores, two_streams):
            shared_output = self.shared_experts(hidden_states, is_prefill)

        with ops.limit_cores(self.main_cores, two_streams):
            router_input = ops.cast(hidden_states, torch.float32)
            router_logits = self.gate(router_input)
            topk_ids, topk_weights = ops.moe_gating_grouped_top_k(
                router_logits,
                self.gate.e_score_correction_bias,
                self.top_k,
                self.groups,
                self.top_groups,
                self.routed_scaling_factor,
            )
            x, scale, order, counts = ops.moe_dispatch(hidden_states, topk_ids, self.routing, self.quantised)
            expert_out = self.experts(x, scale, counts)
            routed_output = ops.moe_combine(expert_out, order, topk_ids, topk_weights, hidden_states, self.routing)

        ops.join("shared_experts", two_streams)
        hidden_states = ops.add(routed_output, shared_output)
        if self.moe_tp_size > 1:
            hidden_states = ops.reduce_scatter(hidden_states, "moe_tp", self.moe_tp_size)
        return hidden_states


class DeepseekV3Attention(nn.Module):
    """MLA on compressed keys and values: kv_b is split and absorbed into the query and the output.

    With `attn_tp_size` > 1 the dies of a group bring their tokens together and each computes its heads; with
    `o_proj_tp_size` > 1 alone they exchange heads against tokens before o_proj. If quantised, all projections are
    int8 except kv_b.
    """

    def __init__(self, config: DeepseekV3Config) -> None:
        super().__init__()
        heads, latent = config.num_attention_heads, config.kv_lora_rank
        nope, rope, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        self.quantised = quantised = config.deployment.quantised
        self.attn_tp_size = config.deployment.attn_tp_size
        self.o_proj_tp_size = config.deployment.o_proj_tp_size
        self.softmax_scale = (nope + rope) ** -0.5
        if config.yarn is not None:
            self.softmax_scale *= config.yarn.score_factor
        group = ("attn_tp", self.attn_tp_size)
        self.q_a_proj = InputMajorLinear(config, config.hidden_size, config.q_lora_rank, quantised=quantised)
        self.q_a_layernorm = RMSNorm(config, config.q_lora_rank, 1e-6)
        self.q_b_proj = InputMajorLinear(config, config.q_lora_rank, heads * (nope + rope), group, quantised)
        self.kv_a_proj_with_mqa = InputMajorLinear(config, config.hidden_size, latent + rope, quantised=quantised)
        self.kv_a_layernorm = RMSNorm(config, latent, 1e-6)
        own_heads = (Cut(0, *group),)
        self.kv_b_proj_w_k = parameter(heads, nope, latent, dtype=config.dtype, fan_in=latent, cuts=own_heads)
        self.kv_b_proj_w_v = parameter(heads, latent, value, dtype=config.dtype, fan_in=latent, cuts=own_heads)
        self.o_proj = Linear(
            config, heads * value, config.hidden_size, quantised=quantised, row=("o_proj_tp", self.o_proj_tp_size)
        )

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        kv_cache: KVCache,
        forward_metadata: ForwardMetadata,
    ) -> Tensor:
        nope_cache, rope_cache = kv_cache
        if self.attn_tp_size > 1:
            hidden_states = ops.all_gather(hidden_states, "attn_tp", self.attn_tp_size)
        q_nope, q_rope = self.prolog(hidden_states, position_embeddings, kv_cache, forward_metadata)
        attn_output = ops.fused_infer_attention_score(
            q_nope, nope_cache, nope_cache, forward_metadata, self.softmax_scale, q_rope, rope_cache
        )
        attn_output = ops.transpose_batch_matmul(attn_output, self.kv_b_proj_w_v)
        if self.o_proj_tp_size > 1 and self.attn_tp_size == 1:
            attn_output = self.heads_for_tokens(attn_output)
        x, scale = ops.quantise(attn_output, self.quantised)
        attn_output = self.o_proj(x, scale)
        if self.o_proj_tp_size > 1:
            attn_output = ops.reduce_scatter(attn_output, "o_proj_tp", self.o_proj_tp_size)
        return attn_output

    def prolog(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        kv_cache: KVCache,
        forward_metadata: ForwardMetadata,
    ) -> tuple[Tensor, Tensor]:
        """Writes the caches; hidden states [T, H] -> queries [T, N, latent] and [T, N, rope]."""
        cos, sin = position_embeddings
        nope_cache, rope_cache = kv_cache
        if not self.quantised:
            return ops.mla_prolog(
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
        x, scale = ops.dynamic_quant(hidden_states)
        return ops.mla_prolog_quant(
            x,
            scale,
            self.q_a_proj.weight,
            self.q_b_proj.weight,
            self.kv_a_proj_with_mqa.weight,
            self.q_a_proj.weight_scale,
            self.q_b_proj.weight_scale,
            self.kv_a_proj_with_mqa.weight_scale,
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

    def heads_for_tokens(self, attn_output: Tensor) -> Tensor:
        """All heads of the own tokens [T, N V] -> the own heads of all tokens [size T, N V / size]."""
        tokens, size = attn_output.shape[0], self.o_proj_tp_size
        by_rank = ops.transpose(attn_output.view(tokens, size, -1))
        exchanged = ops.all_to_all(by_rank.view(size * tokens, -1), "o_proj_tp", size)
        return exchanged


class DeepseekV3DecoderLayer(nn.Module):
    """Norm, attention, norm, dense MLP or experts; the residual is added inside the next norm."""

    def __init__(self, config: DeepseekV3Config, layer_index: int) -> None:
        super().__init__()
        self.self_attn = DeepseekV3Attention(config)
        is_dense = layer_index < config.first_k_dense_replace
        self.mlp = DeepseekV3MLP(config) if is_dense else DeepseekV3MoE(config)
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


class DeepseekV3Model(nn.Module):
    """Embedding, decoder layers, final norm."""

    def __init__(self, config: DeepseekV3Config) -> None:
        super().__init__()
        self.embed_tp_size = config.deployment.embed_tp_size
        self.embed_tokens = Embedding(config, config.vocab_size, config.hidden_size, ("embed_tp", self.embed_tp_size))
        self.rotary_emb = RotaryEmbedding(config, config.qk_rope_head_dim, config.yarn)
        self.layers = nn.ModuleList(DeepseekV3DecoderLayer(config, i) for i in range(config.num_hidden_layers))
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


class DeepseekV3ForCausalLM(nn.Module):
    """The whole model. Inputs are token ids [T]."""

    def __init__(self, config: DeepseekV3Config) -> None:
        super().__init__()
        self.config = config
        self.lmhead_tp_size = config.deployment.lmhead_tp_size
        self.model = DeepseekV3Model(config)
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
