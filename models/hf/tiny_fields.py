"""How a configuration field of each name shrinks: what the names in transformers' configurations count."""

from collections.abc import Callable, Mapping
from typing import Any

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 64, 4, 2, 16
LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "decoder_layers",
    "num_decoder_layers",
    "num_blocks",
)

_HEAD_COUNTS = (
    "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads attention_heads "
    "num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads num_attention_heads_per_layer"
)
_SIZES = {
    160: "vocab_size n_vocab decoder_vocab_size unpadded_vocab_size vocab_size_per_layer_input "
    "pronunciation_vocab_size shape_vocab_size",
    HIDDEN: "hidden_size d_model n_embd embedding_size word_embed_proj_dim emb_dim attention_hidden_size embedding_dim "
    "lru_width input_embedding_size output_embedding_size dim_model_base backbone_hidden_size ple_embed_dim "
    "adapter_in_dim adapter_out_dim adapter_input_size",
    128: "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim ffn_hidden_size n_inner d_inner feed_forward_size "
    "dff dim_ff intermediate_size_mlp shared_intermediate_size dense_intermediate_size mamba_intermediate mamba_d_ssm",
    48: "moe_intermediate_size expert_ffn_hidden_size shared_expert_intermediate_size "
    "moe_shared_expert_intermediate_size shared_experts_intermediate_size",
    256: "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions max_source_positions "
    "context_length original_max_position_embeddings num_position_embeddings",
    HEADS: f"{_HEAD_COUNTS} index_n_heads linear_num_key_heads linear_num_value_heads linear_num_heads num_experts "
    "n_routed_experts num_local_experts moe_num_experts mamba_dt_rank time_step_rank",
    HEAD_DIM: "head_dim d_head d_kv kv_channels attention_head_dim attention_head_size global_head_dim swa_head_dim "
    "swa_v_head_dim dim_head swa_qk_head_dim qk_nope_head_dim v_head_dim query_pre_attn_scalar index_head_dim "
    "linear_key_head_dim linear_value_head_dim linear_head_dim mamba_d_head mamba_head_dim mamba_headdim "
    "mamba_d_state ssm_state_size state_size mamba_chunk_size chunk_size index_topk kv_lora_rank o_lora_rank d_rel",
    32: "q_lora_rank",
    24: "qk_head_dim",
    8: "qk_rope_head_dim rotary_dim adapter_rank laurel_rank gated_norm_rank loop_gate_rank hc_lowrank "
    "router_hidden_size hidden_size_per_layer_input sliding_window sliding_window_size attention_window_size "
    "attention_chunk_size window_size local_attention local_attention_window_len",
    2: "zero_expert_num",
    1: "n_group topk_group num_expert_group mamba_n_groups n_groups mamba_ngroups",
    0: "num_nextn_predict_layers num_mtp_layers",
}
_AT_MOST = {
    2: "num_experts_per_tok num_experts_per_token moe_topk moe_k top_k_experts num_selected_experts moe_top_k",
    1: "n_shared_experts num_shared_experts moe_num_shared_experts first_k_dense_replace num_dense_layers "
    "moe_layer_start_index",
    8: "mamba_n_heads mamba_num_heads",
}
KV_COUNTS = [
    "num_key_value_heads",
    "num_kv_heads",
    "num_query_groups",
    "n_kv_heads",
    "kv_n_heads",
    "swa_num_key_value_heads",
    "num_global_key_value_heads",
    "swa_kv_heads",
]

Rule = Callable[[int, Mapping[str, Any]], int]


def _rules() -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    for size, names in _SIZES.items():
        rules |= {name: lambda value, _, size=size: size if value > 0 else value for name in names.split()}  # type: ignore[misc]
    for most, names in _AT_MOST.items():
        rules |= {name: lambda value, _, most=most: min(value, most) for name in names.split()}  # type: ignore[misc]
    return rules | dict.fromkeys(KV_COUNTS, _kv_heads)


def _kv_heads(value: int, fields: Mapping[str, Any]) -> int:
    """One stays one, as many as heads stay as many, and what was grouped stays grouped."""
    heads = [fields.get(name) for name in _HEAD_COUNTS.split()]
    if value <= 1:
        return value
    return HEADS if value in heads else KV_HEADS


RULES = _rules()
