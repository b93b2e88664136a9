"""Tracing, on small models whose kernels, data flow and weights can be counted by hand."""

import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from models import kernels
from models.kernels import Cost, kernel
from models.problems import RefusedError
from models.trace import trace
from models.workload import WeightRead, Workload


@kernel("RmsNorm", "vector")
def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


@kernel("MatMul", "cube", lambda x, weight: Cost(flops=2 * x.numel() * weight.shape[0], flops_dtype="fp32"))
def matmul(x, weight):
    return x @ weight.t()


@kernel("AddRmsNorm", "vector")
def add_rms_norm(residual, x, weight):
    total = residual + x
    return rms_norm(total, weight), total


@kernel("MLAProlog", "cube")
def prolog(x, weights, cache, slots):
    q = x @ weights[0].t()
    cache.index_copy_(0, slots, x @ weights[1].t())
    return q


@kernel(
    "GroupedMatmul",
    "cube",
    lambda x, stack: Cost(other_bytes=7.0, shares={"stack": (0.2, 0.5, 0.8)}, op="QuantGroupedMatmul"),
)
def grouped(x, stack):
    return torch.einsum("th,ehf->tf", x, stack)


@kernel("AllGather", "communication", lambda x: Cost(comm_bytes=3.0, comm_ranks=8))
def all_gather(x):
    return torch.cat([x, x])


@kernel("Cast", "vector")
def cast(x):
    return x


@kernel("Idle", "idle", lambda: Cost(fixed_us=11.0))
def idle():
    return None


class Model(nn.Module):
    """A list of layers, called one after the other."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Linear(nn.Module):
    def __init__(self, rows, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(rows, columns), requires_grad=False)

    def forward(self, x):
        return matmul(x, self.weight)


def traced(module, *inputs, device="meta", root="", **deployment) -> Workload:
    module = module.to(device)
    inputs = inputs or (torch.ones(4, 8),)
    loaded = SimpleNamespace(
        module=module,
        root=root,
        layers="layers",
        deployment=SimpleNamespace(**deployment),
        decode_once=lambda: module(*(x.to(device) for x in inputs)),
    )
    return trace(loaded)


def layer_of(forward, **children) -> nn.Module:
    """A layer of linears (name -> (rows, columns)) with this forward(self, x)."""
    layer = type("Layer", (nn.Module,), {"forward": forward})()
    for name, shape in children.items():
        setattr(layer, name, Linear(*shape))
    return layer


def ops(workload: Workload) -> list[str]:
    return [k.op for k in workload.kernels]


# --- kernels -------------------------------------------------------------------------------------------------------


def test_a_marked_function_is_one_kernel_with_its_cost_and_weight():
    work = traced(Model(layer_of(lambda self, x: self.up(x), up=(16, 8))), tokens_per_step=6.0)
    (k,) = work.kernels
    assert (k.op, k.module, k.engine, k.layer, k.stream, k.cores) == ("MatMul", "layers.0.up", "cube", 0, "main", 0)
    assert k.weights == (WeightRead("layers.0.up.weight", 512),)
    assert (k.flops, k.flops_dtype) == (2 * 32 * 16, "fp32")
    assert k.other_bytes == 4 * 8 * 4 + 4 * 16 * 4  # input and result
    assert work.weight_bytes == {"layers.0.up.weight": 512}
    assert (work.layers, work.tokens) == (1, 6.0)


def test_cost_overrides_shares_communication_and_idle_time():
    layer = layer_of(lambda self, x: (idle(), grouped(all_gather(x), self.stack))[1])
    layer.stack = nn.Parameter(torch.ones(3, 8, 8), requires_grad=False)
    gap, gather, gmm = traced(Model(layer)).kernels
    assert (gap.engine, gap.fixed_us, gap.other_bytes, gap.inputs) == ("idle", 11.0, 0.0, ())
    assert (gather.comm_bytes, gather.comm_ranks) == (3.0, 8)
    assert (gmm.op, gmm.other_bytes) == ("QuantGroupedMatmul", 7.0)
    assert gmm.weights == (WeightRead("layers.0.stack", 768, share=0.5, share_low=0.2, share_high=0.8),)


def test_idle_time_of_the_deployment_follows_the_last_result():
    forward = lambda self, x: (self.a(x), self.b(x))[0]  # noqa: E731
    first, _, gap = traced(Model(layer_of(forward, a=(8, 8), b=(8, 8))), idle_us=40.0).kernels
    assert (gap.op, gap.engine, gap.fixed_us, gap.other_bytes, gap.layer) == ("Idle", "idle", 40.0, 0.0, None)
    assert gap.inputs == (first.index,)


def test_a_marked_function_inside_another_is_part_of_it():
    layer = layer_of(lambda self, x: add_rms_norm(x, x, self.norm)[0])
    layer.norm = nn.Parameter(torch.ones(8))
    work = traced(Model(layer))
    assert ops(work) == ["AddRmsNorm"]
    assert work.kernels[0].weights[0].weight == "layers.0.norm"


def test_streams_and_core_limits_come_from_the_contexts():
    def forward(self, x):
        with kernels.stream_context("moe"), kernels.cores_context(8, 16):
            y = self.a(x)
        return self.b(x), y

    work = traced(Model(layer_of(forward, a=(8, 8), b=(8, 8))))
    assert [(k.stream, k.cores) for k in work.kernels] == [("moe", 8), ("main", 0)]
    with kernels.stream_context("moe") as outside:
        assert outside is None and isinstance(kernels.stream_context("moe"), nullcontext)


# --- weights -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "share"),
    [
        (lambda w: w, 1.0),
        (lambda w: w.data, 1.0),
        (lambda w: w.view(2, 4, 8)[0].reshape(4, 8), 0.5),
        (lambda w: w[:2], 0.25),
        (lambda w: w.t().detach().t(), 1.0),
    ],
)
def test_views_of_a_weight_are_the_weight(view, share):
    layer = layer_of(lambda self, x: matmul(x, view(self.up.weight)), up=(8, 8))
    (k,) = traced(Model(layer)).kernels
    assert [(w.weight, w.share) for w in k.weights] == [("layers.0.up.weight", share)]


def test_a_weight_in_a_list_and_one_that_is_not_an_argument_are_read():
    captured = {}

    @kernel("Fused", "cube")
    def fused(x, pair):
        return x @ pair[0].t() + captured["w"][:4].sum()

    layer = layer_of(lambda self, x: fused(x, [self.a.weight, self.a.weight, self.b.weight]), a=(8, 8), b=(8, 8))
    layer.c = nn.Parameter(torch.ones(8), requires_grad=False)
    model = Model(layer).to("meta")
    captured["w"] = layer.c
    (k,) = traced(model).kernels
    assert [(w.weight, w.share) for w in k.weights] == [
        ("layers.0.a.weight", 1.0),
        ("layers.0.b.weight", 1.0),
        ("layers.0.c", 0.5),
    ]


def test_a_copy_of_a_weight_is_an_activation():
    layer = layer_of(lambda self, x: matmul(x, self.up.weight.double()), up=(8, 8))
    move, product = traced(Model(layer), torch.ones(4, 8, dtype=torch.float64)).kernels
    assert (move.op, [w.weight for w in move.weights]) == ("Cast", ["layers.0.up.weight"])
    assert product.weights == () and product.inputs == (0,)


def test_an_embedding_reads_only_its_rows():
    model = Model(layer_of(lambda self, x: self.table(x)))
    model.layers[0].table = nn.Embedding(100, 8)
    (k,) = traced(model, torch.zeros(4, dtype=torch.long)).kernels
    assert (k.op, k.module) == ("GatherV2", "layers.0.table")
    assert k.weights[0].share == pytest.approx(0.04)


# --- data flow -----------------------------------------------------------------------------------------------------


def test_data_flows_through_views_tuples_and_glue():
    def forward(self, x):
        a, b = self.up(x).split(8, dim=-1)
        c = self.side(x)
        return self.down(F.silu(a) * b.reshape(4, 8)), c

    work = traced(Model(layer_of(forward, up=(16, 8), side=(8, 8), down=(8, 8))))
    assert ops(work) == ["MatMul", "MatMul", "Swish", "Mul", "MatMul"]
    assert [k.inputs for k in work.kernels] == [(), (), (0,), (0, 2), (3,)]
    assert work.ancestors(4) == {0, 2, 3}
    assert work.is_ancestor(0, 4) and not work.is_ancestor(1, 4) and not work.is_ancestor(4, 4)


def test_in_place_ops_become_the_producer():
    def forward(self, x):
        y = self.a(x)
        y += x
        y[0].zero_()
        return self.b(y)

    work = traced(Model(layer_of(forward, a=(8, 8), b=(8, 8))))
    assert ops(work) == ["MatMul", "Add", "Zero", "MatMul"]
    assert [k.inputs for k in work.kernels] == [(), (0,), (), (1, 2)]


def test_an_overwritten_buffer_forgets_and_a_filled_one_collects():
    def forward(self, x):
        buffer = torch.empty(4, 16, device=x.device)
        buffer[:, :8].copy_(self.a(x))
        buffer[:, 8:].copy_(self.b(x))
        one = self.c(buffer[:, :8].contiguous())
        buffer.copy_(torch.zeros_like(buffer))
        return one, self.d(buffer)

    work = traced(Model(layer_of(forward, a=(8, 8), b=(8, 8), c=(8, 8), d=(8, 16))))
    by_module = {k.module: k.index for k in work.kernels if k.op == "MatMul"}
    a, b, c, d = (by_module[f"layers.0.{n}"] for n in "abcd")
    assert work.is_ancestor(a, c) and not work.is_ancestor(b, c)
    assert not work.ancestors(d) & {a, b}


def test_a_kernel_that_writes_its_cache_orders_the_readers_of_it():
    def forward(self, x):
        slots = torch.arange(4, device=x.device)
        q = prolog(x, [self.q.weight, self.k.weight], self.cache, slots)
        self.sink(x)
        return cast(self.cache), q

    layer = layer_of(forward, q=(8, 8), k=(8, 8), sink=(8, 8))
    layer.register_buffer("cache", torch.zeros(16, 8))
    work = traced(Model(layer))
    assert ops(work) == ["MLAProlog", "MatMul", "Cast"]
    assert work.kernels[2].inputs == (0,)


def test_tensors_inside_an_object_count_by_what_is_done_with_them():
    """As forward metadata is passed: the kernel depends on the field that it uses, not on the others."""

    @kernel("Attention", "mix")
    def attend(x, metadata):
        return x + metadata.used

    def forward(self, x):
        used, other = self.a(x), self.b(x)
        return attend(x, SimpleNamespace(used=used, other=other))

    assert [k.inputs for k in traced(Model(layer_of(forward, a=(8, 8), b=(8, 8)))).kernels] == [(), (), (0,)]


def test_a_cache_that_a_kernel_writes_and_returns_stays_the_same_memory():
    @kernel("ScatterCache", "vector")
    def store(cache, x):
        cache[:4].copy_(x)
        return cache

    def forward(self, x):
        self.same = store(self.cache, self.a(x)) is self.cache
        return self.b(self.cache)

    layer = layer_of(forward, a=(8, 8), b=(8, 8))
    layer.register_buffer("cache", torch.zeros(16, 8))
    assert [k.inputs for k in traced(Model(layer)).kernels] == [(), (0,), (1,)]
    assert layer.same


def test_a_kernel_that_hands_its_argument_back_still_produces_its_result():
    def forward(self, x):
        y = self.a(x)
        return self.b(y), self.c(cast(y))

    work = traced(Model(layer_of(forward, a=(8, 8), b=(8, 8), c=(8, 8))))
    assert ops(work) == ["MatMul", "MatMul", "Cast", "MatMul"]
    assert [k.inputs for k in work.kernels] == [(), (0,), (0,), (2,)]


def test_the_residual_comes_from_the_fused_norm():
    def forward(self, x):
        y = self.a(x)
        normed, residual = add_rms_norm(x, y, self.norm)
        return self.b(normed), residual + 1

    layer = layer_of(forward, a=(8, 8), b=(8, 8))
    layer.norm = nn.Parameter(torch.ones(8), requires_grad=False)
    assert [k.inputs for k in traced(Model(layer)).kernels] == [(), (0,), (1,), (1,)]


def test_constants_and_the_code_around_the_model_are_no_kernels():
    model = Model(layer_of(lambda self, x: self.up(x + torch.zeros(8, device=x.device)), up=(8, 8))).to("meta")

    def decode_once():
        x = torch.ones(4, 8, device="meta").mul(2)
        return model(model(x) * 3)  # what flows around the model still flows

    work = trace(SimpleNamespace(module=model, root="", layers="layers", deployment=None, decode_once=decode_once))
    assert ops(work) == ["Add", "MatMul", "Add", "MatMul"]
    assert [k.inputs for k in work.kernels] == [(), (0,), (1,), (2,)]


def test_inference_mode_shows_the_same_kernels():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

        def forward(self, x):
            return self.layers[1](F.gelu(self.layers[0](x)))

    plain = Plain()
    again = Plain()
    forward = again.forward

    def inference(x):
        with torch.inference_mode():
            return forward(x)

    again.forward = inference
    assert traced(plain).kernels == traced(again).kernels
    assert ops(traced(plain)) == ["MatMul", "Gelu", "MatMul"]


# --- module calls --------------------------------------------------------------------------------------------------


def test_module_calls_have_events_ports_and_repetitions():
    def forward(self, x):
        return self.b(self.a(self.a(x)))

    layer = layer_of(forward, a=(8, 8), b=(8, 8), unused=(8, 8))
    work = traced(Model(layer))
    first, second = work.calls["layers.0.a"]
    (b,) = work.calls["layers.0.b"]
    (whole,) = work.calls["layers.0"]
    assert "layers.0.unused" not in work.calls
    assert [k.module for k in work.kernels] == ["layers.0.a", "layers.0.a", "layers.0.b"]
    assert (first.input_kernel, first.output_kernel) == (None, 0)
    assert (second.input_kernel, second.output_kernel) == (0, 1)
    assert (b.input_kernel, b.output_kernel) == (1, 2)
    assert (whole.input_kernel, whole.output_kernel) == (None, 2)
    events = [whole.enter, first.enter, first.exit, second.enter, second.exit, b.enter, b.exit, whole.exit]
    assert events == sorted(events) and len(set(events)) == 8
    everything = [e for calls in work.calls.values() for c in calls for e in (c.enter, c.exit)]
    assert sorted(everything) == list(range(len(everything)))


def test_ports_look_at_the_first_tensor_of_arguments_keywords_and_results():
    def forward(self, x):
        y = self.a(x)
        return self.pick({"flag": 1, "x": y}), self.pick(more=y, x=x)

    layer = layer_of(forward, a=(8, 8))
    layer.pick = layer_of(lambda self, x=None, more=None: {"n": 3, "out": (x["x"] if isinstance(x, dict) else x,)})
    one, two = traced(Model(layer)).calls["layers.0.pick"]
    assert (one.input_kernel, one.output_kernel) == (0, 0)
    assert (two.input_kernel, two.output_kernel) == (0, None)


def test_the_port_of_a_tensor_with_several_producers_is_the_last_one():
    def fill(self, x):
        buffer = torch.empty(8, 8, device=x.device)
        buffer[4:].copy_(self.a(x))
        buffer[:4].copy_(x)
        return buffer

    layer = layer_of(lambda self, x: self.next(self.fill(x)), next=(8, 8))
    layer.fill = layer_of(fill, a=(8, 8))
    work = traced(Model(layer))
    assert ops(work) == ["MatMul", "TensorMove", "TensorMove", "MatMul"]
    assert work.calls["layers.0.fill"][0].output_kernel == work.calls["layers.0.next"][0].input_kernel == 2
    assert work.kernels[3].inputs == (1, 2)


def test_layer_numbers_come_from_the_path_and_hooks_are_removed():
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = Model(
                *(layer_of(lambda self, x: self.up(x), up=(8, 8)) for _ in range(12)),
            )
            self.head = Linear(8, 8)

        def forward(self, x):
            return self.head(self.model(x))

    module = Wrapper()
    work = traced(module, root="model")
    assert [k.layer for k in work.kernels] == [*range(12), None]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


def test_a_trace_on_cpu_is_the_trace_on_meta_and_leaves_the_numbers():
    def forward(self, x):
        normed, residual = add_rms_norm(x, self.a(x), self.norm)
        return self.b(cast(normed)) + residual

    layer = layer_of(forward, a=(8, 8), b=(8, 8))
    layer.norm = nn.Parameter(torch.ones(8), requires_grad=False)
    model = Model(layer)
    x = torch.arange(32.0).reshape(4, 8)
    before = model(x)
    on_cpu = traced(model, x, device="cpu")
    assert torch.equal(model(x), before)
    assert traced(model, x, device="meta") == on_cpu


def test_looking_at_values_is_refused_with_the_module():
    def forward(self, x):
        return self.a(x) * x.sum().item()

    with pytest.raises(RefusedError, match=r"layers\.0.*_local_scalar_dense"):
        traced(Model(layer_of(forward, a=(8, 8))))
    assert traced(Model(layer_of(forward, a=(8, 8))), device="cpu").kernels  # on CPU there are values


# --- the workload's own indexes -------------------------------------------------------------------------------------


def test_readers_and_compact_listing():
    layer = layer_of(lambda self, x: matmul(self.a(x), self.a.weight), a=(8, 8))
    work = traced(Model(layer))
    assert work.readers("layers.0.a.weight") == (0, 1) and work.readers("nothing") == ()
    assert work.to_json()["kernels"][1] == {
        "index": 1,
        "op": "MatMul",
        "module": "layers.0",
        "engine": "cube",
        "flops": 512.0,
        "flops_dtype": "fp32",
        "weights": {"layers.0.a.weight": {"bytes": 256}},
        "other_bytes": 256.0,
        "inputs": [0],
        "layer": 0,
    }
    assert dataclasses.replace(work, tokens=2.0) != work
