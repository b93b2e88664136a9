"""What the names of configuration fields can't tell about single model types: plain values, merged over."""

from typing import Any

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}

# Defaults without which the configuration can't even be made, by model type.
DEFAULT: dict[str, dict[str, Any]] = {
    # What the model changes to by itself when the text is short, replacing its modules while it runs.
    "big_bird": {"attention_type": "original_full"},
    # Without an attention layer, the cache does not know its length.
    "granitemoehybrid": {"layer_types": (["linear_attention"] * 5 + ["full_attention"] + ["linear_attention"] * 2) * 4},
    # The decoder's cache has as many layers as the encoder, which the causal language model does not have.
    "blenderbot": {"encoder_layers": 24},
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "num_kv_shared_layers": 30,
        }
    },
}

# Types whose causal language model is made from another type's configuration.
DECODER = {"musicgen": "musicgen_decoder", "musicgen_melody": "musicgen_melody_decoder"}

# Types with several rows of token ids per sequence: the field that says how many.
ROWS = {"musicgen_decoder": "num_codebooks", "musicgen_melody_decoder": "num_codebooks"}

# Default configurations that lack values which the model needs, by model type.
COMPLETE: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "deepseek_v2": {"n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2},
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "dbrx": {
        "rope_parameters": _ROPE,
        "attn_config": {"kv_n_heads": 8, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    # As in `DEFAULT`.
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "xmod": {"default_language": "en_XX"},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 4,
    },
}

# Types whose file makes parameters in float32 whatever the dtype is; loading a checkpoint in bf16 makes them bf16.
FLOAT_PARAMETERS = ("xlnet",)

# Values of the tiny configuration, by model type.
TINY: dict[str, dict[str, Any]] = {
    # Every kind of layer behind every kind that it follows at full size.
    "bamba": {"num_hidden_layers": 4, "attn_layer_indices": [2]},
    "jamba": {"num_hidden_layers": 5, "attn_layer_period": 8, "attn_layer_offset": 2},
    "granitemoehybrid": {
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "zamba": {"num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"]},
    "zamba2": {"num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"]},
    "dory": {
        "num_hidden_layers": 4,
        "n_input_layers": 1,
        "n_output_layers": 1,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "blenderbot": {"encoder_layers": 2},
    # The head dimension that RoPE reads is the rotated part of the head.
    "longcat_flash": {"head_dim": 8},
    # Products and sums of dimensions that the classes check.
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "xlstm": {"hidden_size": 256, "embedding_dim": 256},
    "reformer": {
        "attn_layers": ["local", "lsh"],
        "axial_pos_shape": (16, 16),
        "axial_pos_embds_dim": (32, 32),
        "num_buckets": 2,
        "local_attn_chunk_length": 16,
        "lsh_attn_chunk_length": 16,
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    # Heads of the sliding layers differ; each layer's head is its rotated and its other part.
    "dots3_note_text": {
        "num_hidden_layers": 3,
        "layer_types": ["indexed_attention", "indexed_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "head_dim": 24,
        "per_layer_config": {2: {"num_attention_heads": 2, "num_key_value_heads": 2}},
    },
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
        "ngram_vocab_size_base": 200,
        "split_ngram_parts": 4,
        "heads_per_ngram": 2,
        "make_ngram_vocab_size_divisible_by": 8,
    },
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "gemma4_assistant": {"text_config": {"num_kv_shared_layers": 2}},
    "gemma4_unified_assistant": {"text_config": {"num_kv_shared_layers": 2}},
    # Key and value caches are shared with earlier layers of the same kind, so both kinds must come twice.
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": [128] * 4,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
    },
}
