"""Tiny models of real transformers architectures that look like a `LoadedModel`, and recipes for them."""

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache

from transforms.plan import Plan, Prefetch

MIB = 2**20
_COMMON = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_DENSE = {**_COMMON, "num_hidden_layers": 3, "num_key_value_heads": 2, "intermediate_size": 48}
_MLA = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _DENSE),
    "qwen3": ("Qwen3", {**_DENSE, "head_dim": 8}),
    "qwen3_moe": (
        "Qwen3Moe",
        {**_DENSE, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {
            **_DENSE,
            **_MLA,
            "num_key_value_heads": 4,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
        },
    ),
    "longcat_flash": (
        "LongcatFlash",
        {
            **_COMMON,
            **_MLA,
            "num_layers": 3,
            "ffn_hidden_size": 48,
            "expert_ffn_hidden_size": 16,
            "n_routed_experts": 4,
            "zero_expert_num": 2,
            "moe_topk": 2,
            "head_dim": 4,
        },
    ),
    "gpt_oss": (
        "GptOss",
        {**_DENSE, "intermediate_size": 16, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
}


@dataclass
class RealModel:
    """The part of `LoadedModel` that transforms use."""

    name: str
    module: nn.Module
    python_module: ModuleType
    root: str = "model"
    layers: str = "layers"

    @torch.no_grad()
    def run(
        self,
        module: nn.Module | None = None,
        decode_steps: int = 3,
        before_decode: Callable[[], None] = lambda: None,
    ) -> list[torch.Tensor]:
        module = module or self.module
        cache = DynamicCache(config=module.config)
        ids = torch.randint(3, 60, (2, 5), generator=torch.Generator().manual_seed(1))
        outputs = [module(input_ids=ids, cache=cache, use_cache=True).logits]
        before_decode()
        for _ in range(decode_steps):
            ids = outputs[-1][:, -1:].argmax(-1)
            outputs.append(module(input_ids=ids, cache=cache, use_cache=True).logits)
        return outputs

    def rebuild(self, python_module: ModuleType, **switches: Any) -> nn.Module:
        module = _build(self.name, python_module, **switches)
        module.load_state_dict(self.module.state_dict(), strict=True, assign=True)
        return module


def load(name: str) -> RealModel:
    python_module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    return RealModel(name, _build(name, python_module), python_module)


def _build(name: str, python_module: ModuleType, **switches: Any) -> nn.Module:
    prefix, values = _MODELS[name]
    package = importlib.import_module(f"transformers.models.{name}")
    config = getattr(package, f"{prefix}Config")(**values, **switches)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    return getattr(python_module, f"{prefix}ForCausalLM")(config).eval().requires_grad_(False)


_DENSE_TARGETS = [
    ("gate", "layers.{i}.mlp.gate_proj.weight", "layers.{i}.self_attn.o_proj", 18 * MIB),
    ("up", "layers.{i}.mlp.up_proj.weight", "layers.{i}.self_attn.o_proj", 18 * MIB),
    ("down", "layers.{i}.mlp.down_proj.weight", "layers.{i}.mlp.gate_proj", 9 * MIB + 512),
    ("q_next", "layers.{i+1}.self_attn.q_proj.weight", "layers.{i}.mlp.down_proj", 7 * MIB),
]
TARGETS: dict[str, list[tuple[str, str, str, int]]] = {
    "llama": _DENSE_TARGETS,
    "qwen3": _DENSE_TARGETS,
    "qwen3_moe": [
        ("gate", "layers.{i}.mlp.gate.weight", "layers.{i}.self_attn.o_proj", 18 * MIB),
        ("experts", "layers.{i}.mlp.experts.gate_up_proj", "layers.{i}.mlp.gate", 36 * MIB),
        ("q_next", "layers.{i+1}.self_attn.q_proj.weight", "layers.{i}.mlp.experts", 7 * MIB),
    ],
    "deepseek_v3": [
        ("o", "layers.{i}.self_attn.o_proj.weight", "layers.{i}.self_attn.q_a_proj", 7 * MIB),
        ("router", "layers.{i}.mlp.gate.weight", "layers.{i}.self_attn.o_proj", 18 * MIB),
        ("gate", "layers.{i}.mlp.gate_proj.weight", "layers.{i}.self_attn.o_proj", 18 * MIB),
        ("shared_gate", "layers.{i}.mlp.shared_experts.gate_proj.weight", "layers.{i}.mlp.gate", 4 * MIB),
        (
            "shared_down",
            "layers.{i}.mlp.shared_experts.down_proj.weight",
            "layers.{i}.mlp.shared_experts.up_proj",
            4 * MIB,
        ),
        ("q_next", "layers.{i+1}.self_attn.q_a_proj.weight", "layers.{i}", 4 * MIB),
    ],
    "longcat_flash": [
        ("router", "layers.{i}.mlp.router.classifier.weight", "layers.{i}.self_attn.0.o_proj", 18 * MIB),
        ("gate_0", "layers.{i}.mlps.0.gate_proj.weight", "layers.{i}.self_attn.0.o_proj", 18 * MIB),
        ("down_0", "layers.{i}.mlps.0.down_proj.weight", "layers.{i}.mlps.0.gate_proj:input", 18 * MIB),
        ("q_a", "layers.{i}.self_attn.1.q_a_proj.weight", "layers.{i}.mlps.0.up_proj", 18 * MIB),
        ("q_b", "layers.{i}.self_attn.1.q_b_proj.weight", "layers.{i}.mlps.0.up_proj", 36 * MIB),
        ("kv_a", "layers.{i}.self_attn.1.kv_a_proj_with_mqa.weight", "layers.{i}.mlps.0.up_proj", 7 * MIB),
        ("down_1", "layers.{i}.mlps.1.down_proj.weight", "layers.{i}.mlps.1.gate_proj:input", 18 * MIB),
        ("q_a_next", "layers.{i+1}.self_attn.0.q_a_proj.weight", "layers.{i}.mlps.1.down_proj", 18 * MIB),
        ("q_b_next", "layers.{i+1}.self_attn.0.q_b_proj.weight", "layers.{i}.mlps.1.down_proj", 36 * MIB),
        ("kv_a_next", "layers.{i+1}.self_attn.0.kv_a_proj_with_mqa.weight", "layers.{i}.mlps.1.down_proj", 7 * MIB),
    ],
    "gpt_oss": [
        ("router", "layers.{i}.mlp.router.weight", "layers.{i}.self_attn.o_proj", 18 * MIB),
        ("down", "layers.{i}.mlp.experts.down_proj", "layers.{i}.mlp.router", 36 * MIB),
        ("q_next", "layers.{i+1}.self_attn.q_proj.weight", "layers.{i}.mlp.experts", 7 * MIB),
    ],
}


def events(loaded: Any) -> dict[str, tuple[int, int]]:
    """(enter, exit) of every module call of a decode step; of the last call where there are several."""
    found: dict[str, tuple[int, int]] = {}
    started: dict[str, int] = {}
    count, handles = [0], []

    def tick() -> int:
        count[0] += 1
        return count[0]

    for name, module in loaded.module.named_modules():

        def before(_: nn.Module, __: Any, name: str = name) -> None:
            started[name] = tick()

        def after(_: nn.Module, __: Any, ___: Any, name: str = name) -> None:
            found[name] = (started[name], tick())

        handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    loaded.run(decode_steps=1, before_decode=found.clear)
    for handle in handles:
        handle.remove()
    return found


def make_plan(loaded: Any, targets: list[tuple[str, str, str, int]], exe_mode: str = "ge_graph") -> Plan:
    """Expand `{i}` patterns, in the order in which the dependencies become ready."""
    when = events(loaded)
    parameters = {name for name, _ in loaded.module.named_parameters(remove_duplicate=False)}
    modules = dict(loaded.module.named_modules())
    never = 10**9  # a module that is not called: the transforms have to say so
    prefix = f"{loaded.root}." if loaded.root else ""
    count = len(loaded.module.get_submodule(prefix + loaded.layers))
    entries = []
    for layer in range(count):
        for rank, (target, weight, dependency, size) in enumerate(targets):
            module, _, port = dependency.partition(":")
            weight, module = prefix + _fill(weight, layer), prefix + _fill(module, layer)
            if weight not in parameters or module not in modules:
                continue
            event = when.get(module, (never, never))[0 if port == "input" else 1]
            entries.append((event, rank, Prefetch(target, weight, module, port or "output", layer, size, size)))  # type: ignore[arg-type]
    entries.sort(key=lambda e: e[:2])
    return Plan(getattr(loaded, "name", "test"), "test", exe_mode, tuple(entry for _, _, entry in entries))


def _fill(pattern: str, layer: int) -> str:
    return re.sub(r"\{i([+-]\d+)?\}", lambda m: str(layer + int(m[1] or 0)), pattern)
