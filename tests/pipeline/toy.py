"""A small model with the structure that recipes are about, and its decode step written down by hand.

Layer: norm -> attention (q_a and q_b feed one fused kernel and are never called; o_proj is called) -> norm ->
[router -> experts on stream `moe`] beside [gate_up -> act -> down] -> join. Weights are float32 unless said otherwise.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from models.workload import Kernel, ModuleCall, WeightRead, Workload

LAYERS, HIDDEN, INNER, EXPERTS = 4, 64, 96, 4


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(HIDDEN, device="meta"))


class RotaryEmbedding(nn.Module):
    pass


class SwiGLU(nn.Module):
    pass


class QuantLinear(nn.Module):
    """int8 weight under another name, beside its scales."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.qweight = nn.Parameter(torch.empty(outputs, inputs, dtype=torch.int8, device="meta"), requires_grad=False)
        self.weight_scale = nn.Parameter(torch.empty(outputs, device="meta"))


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w13_weight = nn.Parameter(torch.empty(EXPERTS, HIDDEN, 2 * INNER, device="meta"))
        self.w2_weight = nn.Parameter(torch.empty(EXPERTS, INNER, HIDDEN, device="meta"))


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, device="meta")


def module_of(**children: nn.Module) -> nn.Module:
    module = nn.Module()
    for name, child in children.items():
        module.add_module(name, child)
    return module


def layer(role: str) -> nn.Module:
    parts: dict[str, nn.Module] = {}
    if role in ("all", "attention"):
        parts["self_attn"] = module_of(
            q_a=linear(HIDDEN, 16), q_b=linear(16, HIDDEN), rotary_emb=RotaryEmbedding(), o_proj=linear(HIDDEN, HIDDEN)
        )
        parts["mlp"] = module_of(gate_up=linear(HIDDEN, 2 * INNER), act=SwiGLU(), down=QuantLinear(INNER, HIDDEN))
    if role in ("all", "ffn"):
        parts["moe"] = module_of(router=linear(HIDDEN, EXPERTS), experts=Experts())
    return module_of(input_norm=RMSNorm(), **parts, post_norm=RMSNorm())


def build_module(role: str = "all", layers: int = LAYERS) -> nn.Module:
    embed = nn.Embedding(32, HIDDEN, device="meta")
    head = linear(HIDDEN, 32)
    head.weight = embed.weight
    stack = nn.ModuleList(layer(role) for _ in range(layers))
    return module_of(model=module_of(embed=embed, layers=stack, norm=RMSNorm()), lm_head=head)


@dataclass
class Step:
    """Writes down a decode step: kernels in program order and module calls around them."""

    module: nn.Module
    kernels: list[Kernel] = field(default_factory=list)
    calls: dict[str, list[ModuleCall]] = field(default_factory=dict)
    stack: list[str] = field(default_factory=list)
    events: int = 0

    def kernel(self, op: str, *inputs: int, reads: tuple[str, ...] = (), **more: Any) -> int:
        sizes = {n: p.numel() * p.element_size() for n, p in self.module.named_parameters()}
        module = self.stack[-1] if self.stack else ""
        weights = tuple(WeightRead(w, sizes[w]) for w in reads)
        engine = more.pop("engine", "cube")
        index = len(self.kernels)
        self.kernels.append(
            Kernel(index, op, module, engine, weights=weights, inputs=tuple(inputs), other_bytes=256.0, **more)
        )
        return index

    @contextmanager
    def call(self, fqn: str, given: int | None) -> Iterator[list[int]]:
        """The body appends the kernel that makes the module's output."""
        enter, result = self.events, []
        self.events += 1
        self.stack.append(fqn)
        yield result
        self.stack.pop()
        self.calls.setdefault(fqn, []).append(
            ModuleCall(fqn, enter, self.events, given, result[-1] if result else None)
        )
        self.events += 1

    def leaf(self, fqn: str, op: str, given: int, **more: Any) -> int:
        with self.call(fqn, given) as out:
            weight = next((w for w in ("weight", "qweight") if hasattr(self.module.get_submodule(fqn), w)), None)
            out.append(self.kernel(op, given, reads=(f"{fqn}.{weight}",) if weight else (), **more))
        return out[-1]

    def workload(self, layers: int) -> Workload:
        sizes = {n: p.numel() * p.element_size() for n, p in self.module.named_parameters()}
        calls = {fqn: tuple(calls) for fqn, calls in self.calls.items()}
        return Workload(tuple(self.kernels), calls, layers, 1.0, sizes)


def build_step(module: nn.Module, role: str = "all", layers: int = LAYERS) -> Workload:
    step = Step(module)
    with step.call("", None) as result, step.call("model", None) as body:
        with step.call("model.embed", None) as out:
            out.append(step.kernel("GatherV2", reads=("model.embed.weight",), engine="vector"))
        x = out[-1]
        for i in range(layers):
            x = _layer(step, f"model.layers.{i}", x, role)
        x = step.leaf("model.norm", "RmsNorm", x, engine="vector")
        body.append(x)
        with step.call("lm_head", x) as out:
            out.append(step.kernel("MatMul", x, reads=("model.embed.weight",)))
        result.append(out[-1])
    return step.workload(layers)


def _layer(step: Step, name: str, x: int, role: str) -> int:
    with step.call(name, x) as result:
        h = step.leaf(f"{name}.input_norm", "RmsNorm", x, engine="vector")
        shortcut = h
        if role in ("all", "attention"):
            attn = f"{name}.self_attn"
            with step.call(attn, h) as out:
                q = step.kernel("MLAProlog", h, reads=(f"{attn}.q_a.weight", f"{attn}.q_b.weight"))
                a = step.kernel("FusedInferAttentionScore", q, engine="mix")
                out.append(step.leaf(f"{attn}.o_proj", "MatMul", a))
            h = shortcut = step.leaf(f"{name}.post_norm", "AddRmsNorm", out[-1], engine="vector")
        if role in ("all", "ffn"):
            with step.call(f"{name}.moe", h) as out:
                r = step.leaf(f"{name}.moe.router", "MatMul", h, stream="moe")
                d = step.kernel("MoeDistributeDispatch", r, h, engine="communication", stream="moe")
                with step.call(f"{name}.moe.experts", d) as inner:
                    g1 = step.kernel("GroupedMatmul", d, reads=(f"{name}.moe.experts.w13_weight",), stream="moe")
                    inner.append(
                        step.kernel("GroupedMatmul", g1, reads=(f"{name}.moe.experts.w2_weight",), stream="moe")
                    )
                out.append(step.kernel("MoeDistributeCombine", inner[-1], engine="communication", stream="moe"))
            shortcut = out[-1]
        if role in ("all", "attention"):
            with step.call(f"{name}.mlp", h) as out:
                g = step.leaf(f"{name}.mlp.gate_up", "MatMul", h)
                s = step.leaf(f"{name}.mlp.act", "SwiGLU", g, engine="vector")
                out.append(step.leaf(f"{name}.mlp.down", "QuantBatchMatmul", s))
            h = out[-1]
        result.append(step.kernel("Add", h, shortcut, engine="vector"))
    return result[-1]


def loaded(role: str = "all", layers: int = LAYERS, **deployment: Any) -> Any:
    """What `resolve` needs of a `LoadedModel`."""
    return SimpleNamespace(
        spec=SimpleNamespace(name="toy"),
        deployment=SimpleNamespace(**{"role": role, "multi_stream": 1, **deployment}),
        exe_mode="ge_graph",
        module=build_module(role, layers),
        root="model",
        layers="layers",
        size="full",
        decode_once=lambda: None,  # its step is written down below: there is nothing to run
    )


def model_and_step(role: str = "all", layers: int = LAYERS, **deployment: Any) -> tuple[Any, Workload]:
    model = loaded(role, layers, **deployment)
    return model, build_step(model.module, role, layers)


def change_kernels(workload: Workload, op: str, **changes: Any) -> Workload:
    """The same step with other attributes of all kernels of one operator."""
    return replace(workload, kernels=tuple(replace(k, **changes) if k.op == op else k for k in workload.kernels))
