"""Which targets and dependencies are legal, and what is said about those that are not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.paths import Names
from models.workload import Kernel, ModuleCall, Workload
from pipeline.legality import Flow, Illegal, Placement, check_dependency, check_target
from tests.pipeline.toy import LAYERS, build_module, build_step

MODULE = build_module()
NAMES = Names(MODULE, "model", "layers")
STEP = build_step(MODULE)
FLOW = Flow(STEP)
L1 = "model.layers.1"


def dependency(weight: str, fqn: str, port: str = "output", step: Workload = STEP) -> Illegal | Placement:
    flow = Flow(step)
    reader = check_target(NAMES, flow, weight, 1)
    assert isinstance(reader, int), reader
    return check_dependency(NAMES, flow, fqn, port, reader, 1)  # type: ignore[arg-type]


def illegal(weight: str, fqn: str, port: str = "output", step: Workload = STEP) -> Illegal:
    result = dependency(weight, fqn, port, step)
    assert isinstance(result, Illegal), result
    return result


@st.composite
def graphs(draw: st.DrawFn) -> Workload:
    count = draw(st.integers(1, 12))
    inputs = [draw(st.lists(st.integers(0, k - 1), max_size=3, unique=True)) if k else [] for k in range(count)]
    return Workload(tuple(Kernel(k, "MatMul", "", "cube", inputs=tuple(i)) for k, i in enumerate(inputs)))


@given(graphs())
def test_flow_equals_the_workloads_own_ancestors(step: Workload) -> None:
    flow = Flow(step)
    for k in range(len(step.kernels)):
        assert {j for j in range(len(step.kernels)) if flow.flows(j, k)} == step.ancestors(k)


@pytest.mark.parametrize(
    ("weight", "fqn", "port", "op"),
    [
        (f"{L1}.moe.router.weight", f"{L1}.self_attn.o_proj", "output", "MatMul"),
        (f"{L1}.mlp.down.qweight", f"{L1}.mlp.gate_up", "input", "AddRmsNorm"),
        (f"{L1}.mlp.down.qweight", f"{L1}.mlp.gate_up", "output", "MatMul"),
        (f"{L1}.self_attn.q_a.weight", "model.layers.0.mlp.down", "output", "QuantBatchMatmul"),
        (f"{L1}.moe.experts.w2_weight", f"{L1}.moe.router", "output", "MatMul"),
        (f"{L1}.moe.router.weight", "model.layers.0.moe.experts", "output", "GroupedMatmul"),
        (f"{L1}.mlp.down.qweight", "model.layers.0", "input", "GatherV2"),
    ],
)
def test_an_ancestor_that_is_called_before_is_legal_whatever_its_kind(
    weight: str, fqn: str, port: str, op: str
) -> None:
    weight = weight.replace(L1, "model.layers.0") if fqn == "model.layers.0" else weight
    place = dependency(weight, fqn, port)
    assert isinstance(place, Placement), place
    assert STEP.kernels[place.producer].op == op
    assert any(r.weight == weight for r in STEP.kernels[place.reader].weights)
    assert FLOW.flows(place.producer, place.reader)


def test_the_event_is_enter_for_an_input_and_exit_for_an_output() -> None:
    call = STEP.calls[f"{L1}.mlp.gate_up"][0]
    weight = f"{L1}.mlp.down.qweight"
    before, after = (dependency(weight, f"{L1}.mlp.gate_up", port) for port in ("input", "output"))
    assert isinstance(before, Placement)
    assert isinstance(after, Placement)
    assert (before.event, after.event) == (call.enter, call.exit)


def test_a_dependency_after_its_target_is_refused() -> None:
    result = illegal(f"{L1}.mlp.gate_up.weight", f"{L1}.mlp.down")
    assert result.code == "dependency-after-target"
    assert "`layers.{i}.mlp.down` comes after its target" in result.message
    assert "`layers.{i}.post_norm`" in result.fix


def test_the_targets_own_output_is_no_dependency() -> None:
    result = illegal(f"{L1}.mlp.gate_up.weight", f"{L1}.mlp.gate_up")
    assert result.code == "dependency-after-target"
    assert "produced by the target's own kernel" in result.message


def test_an_early_tensor_that_is_only_used_after_the_target_is_too_late_a_place() -> None:
    # The norm's output is an ancestor of the router, but gate_up, whose input it also is, is called after the router.
    result = illegal(f"{L1}.moe.router.weight", f"{L1}.mlp.gate_up", "input")
    assert result.code == "dependency-after-target"


@pytest.mark.parametrize(
    ("weight", "fqn"),
    [
        (f"{L1}.mlp.down.qweight", f"{L1}.moe.router"),
        (f"{L1}.moe.experts.w2_weight", f"{L1}.mlp.gate_up"),
        (f"{L1}.moe.router.weight", f"{L1}.mlp.down"),
    ],
)
def test_a_dependency_in_another_branch_is_refused(weight: str, fqn: str) -> None:
    result = illegal(weight, fqn)
    assert result.code == "dependency-in-another-branch"
    assert "stream moe" in result.message
    assert "stream main" in result.message
    assert "nearest legal dependency" in result.fix


def test_a_dependency_that_is_never_called_says_where_its_weight_goes_and_what_is_called() -> None:
    result = illegal(f"{L1}.mlp.gate_up.weight", f"{L1}.self_attn.q_a")
    assert result.code == "never-called"
    assert "never called: its weight goes into MLAProlog, launched by `layers.{i}.self_attn`" in result.message
    assert "Called nearby: `layers.{i}.self_attn`, `layers.{i}.self_attn.o_proj`." in result.fix


def test_a_module_without_weights_that_is_never_called_is_told_too() -> None:
    result = illegal(f"{L1}.mlp.gate_up.weight", f"{L1}.self_attn.rotary_emb")
    assert result.code == "never-called"
    assert "weight" not in result.message


def test_an_input_of_the_step_orders_nothing() -> None:
    assert illegal(f"{L1}.mlp.gate_up.weight", "model.embed", "input").code == "dependency-is-input"


def test_a_parameter_is_no_dependency() -> None:
    result = illegal(f"{L1}.mlp.gate_up.weight", f"{L1}.self_attn.o_proj.weight")
    assert result.code == "not-a-module"
    assert "`layers.{i}.self_attn.o_proj`" in result.fix


def test_a_module_that_is_called_twice_is_refused() -> None:
    name = f"{L1}.self_attn.o_proj"
    twice = replace(STEP, calls={**STEP.calls, name: STEP.calls[name] * 2})
    result = illegal(f"{L1}.mlp.gate_up.weight", name, step=twice)
    assert result.code == "called-repeatedly"
    assert "2 times" in result.message


def test_a_weight_that_is_read_before_anything_runs_has_no_dependency() -> None:
    step = Workload(
        (replace(STEP.kernels[2], index=0, inputs=()), replace(STEP.kernels[3], index=1, inputs=(0,))),
        {"model.layers.0.self_attn": (ModuleCall("model.layers.0.self_attn", 0, 1, None, 1),)},
        LAYERS,
    )
    result = illegal("model.layers.0.self_attn.q_a.weight", "model.layers.0.self_attn", step=step)
    assert "read before anything else" in result.fix


@pytest.mark.parametrize(
    ("weight", "kind"),
    [
        (f"{L1}.input_norm.weight", "norm"),
        (f"{L1}.post_norm.weight", "norm"),
        (f"{L1}.mlp.down.weight_scale", "vector"),
    ],
)
def test_weights_of_norms_and_scales_are_no_targets(weight: str, kind: str) -> None:
    result = check_target(NAMES, FLOW, weight, 1)
    assert isinstance(result, Illegal)
    assert result.code == "not-a-target"
    assert kind in result.message


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("RmsNorm", "norm"),
        ("AddRmsNorm", "norm"),
        ("InterleaveRope", "RoPE"),
        ("RotaryMul", "RoPE"),
        ("Cast", "cast"),
        ("DynamicQuant", "cast"),
        ("Transpose", "reshape"),
        ("ConcatD", "reshape"),
        ("SwiGLU", "activation"),
        ("DequantSwigluQuant", "activation"),
        ("Gelu", "activation"),
        ("MoeGatingTopK", "topk"),
        ("MoeDistributeDispatch", "dispatch"),
        ("MoeDistributeCombine", "combine"),
        ("GatherV2", "embedding"),
        ("AllGather", "communication"),
    ],
)
def test_kernels_that_are_windows_are_no_targets(op: str, kind: str) -> None:
    kernels = tuple(replace(k, op=op) if k.module == f"{L1}.mlp.gate_up" else k for k in STEP.kernels)
    result = check_target(NAMES, Flow(replace(STEP, kernels=kernels)), f"{L1}.mlp.gate_up.weight", 1)
    assert isinstance(result, Illegal)
    assert result.code == "not-a-target"
    assert kind in result.message


@pytest.mark.parametrize(
    "op",
    ["MatMul", "MatMulV3", "BatchMatMul", "QuantBatchMatmul", "QuantBatchMatmulV3", "GroupedMatmul", "MLAProlog",
     "GroupedMatmulSwigluQuant", "TransposeBatchMatMul", "Mm", "Bmm", "Linear"],
)  # fmt: skip
def test_every_kind_of_matmul_is_a_target(op: str) -> None:
    kernels = tuple(replace(k, op=op) if k.module == f"{L1}.mlp.gate_up" else k for k in STEP.kernels)
    assert isinstance(check_target(NAMES, Flow(replace(STEP, kernels=kernels)), f"{L1}.mlp.gate_up.weight"), int)


def test_a_tied_embedding_is_judged_by_the_matmul_that_reads_it() -> None:
    place = dependency("model.embed.weight", "model.norm")
    assert isinstance(place, Placement)
    assert STEP.kernels[place.reader].op == "MatMul"


def test_a_weight_that_no_kernel_reads_is_refused() -> None:
    kernels = tuple(replace(k, weights=()) for k in STEP.kernels)
    result = check_target(NAMES, Flow(replace(STEP, kernels=kernels)), f"{L1}.mlp.gate_up.weight", 1)
    assert isinstance(result, Illegal)
    assert result.code == "never-read"


def test_the_nearest_legal_dependency_is_the_innermost_module() -> None:
    reader = FLOW.reader(f"{L1}.mlp.gate_up.weight")
    assert reader is not None
    near = [fqn for _, fqn, _ in FLOW.legal_before(reader)]
    assert near[:3] == [f"{L1}.post_norm", f"{L1}.self_attn.o_proj", f"{L1}.self_attn"]


def test_a_module_that_returns_an_early_tensor_late_is_not_suggested() -> None:
    # The layer returns its norm's output unchanged, after the target has been read inside it.
    norm = STEP.calls[f"{L1}.post_norm"][0].output_kernel
    layer = replace(STEP.calls[L1][0], output_kernel=norm)
    flow = Flow(replace(STEP, calls={**STEP.calls, L1: (layer,)}))
    reader = flow.reader(f"{L1}.mlp.gate_up.weight")
    assert reader is not None
    assert L1 not in [fqn for _, fqn, _ in flow.legal_before(reader)]
