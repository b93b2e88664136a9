"""Both realisations on the NPU-shaped models, with the committed recipes, in their deployments."""

from pathlib import Path
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML

from models.loading import LoadedModel, load, load_deployment, load_spec
from models.prefetch import observe
from tests.transforms.patches import assert_clean_and_taken_back
from tests.transforms.real_models import MIB, make_plan
from tests.transforms.text_models import check
from transforms.plan import Plan
from transforms.prefetch_source import load_rewritten, prefetch_source
from transforms.prefetch_wrap import prefetch_wrap
from transforms.realisation import SourceResult

PROJECT = Path(__file__).resolve().parents[2]
CASES = {
    "unsharded": ("longcat_flash", "longcat_flash/decode_prefetch"),
    "longcat_a3_ep128": ("longcat_flash", "longcat_flash/decode_prefetch"),
    "longcat_a3_ep32_ffn": ("longcat_flash", "longcat_flash/decode_prefetch_ffn"),
    "qwen3_a2_tp1": ("qwen3", "qwen3/decode_prefetch"),
    "deepseek_a3_ep128": ("deepseek_v3", "deepseek_v3/decode_prefetch"),
    "qwen3_moe_a3_tp4_ep32": ("qwen3_moe", "qwen3_moe/decode_prefetch"),
}
_cache: dict[str, tuple[LoadedModel, Plan, SourceResult]] = {}


def rewritten(deployment: str) -> tuple[LoadedModel, Plan, SourceResult]:
    if deployment not in _cache:
        model, recipe = CASES[deployment]
        loaded = load(load_spec(model), load_deployment(deployment), "ge_graph", "tiny")
        plan = make_plan(loaded, targets_of(loaded, recipe))
        _cache[deployment] = (loaded, plan, prefetch_source(loaded, plan))
    return _cache[deployment]


def targets_of(loaded: LoadedModel, recipe: str) -> list[tuple[str, str, str, int]]:
    """The recipe's targets with made-up sizes, a different one for each target."""
    section = YAML(typ="safe").load(PROJECT / "conf" / "recipe" / f"{recipe}.yaml")["prefetch"]["targets"]
    parameters = {name.rpartition(".")[2] for name, _ in loaded.module.named_parameters()}
    targets = []
    for number, (name, target) in enumerate(section.items(), 1):
        weight = target["weight"]
        bare = weight.rpartition(".")[2] in parameters
        targets.append((name, weight if bare else f"{weight}.weight", target["dependency"], number * MIB))
    return targets


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[LoadedModel, Plan, SourceResult]:
    return rewritten(request.param)


def test_source_equals_wrap_equals_plan(case: tuple[LoadedModel, Plan, SourceResult], tmp_path: Path) -> None:
    loaded, plan, result = case
    assert plan.prefetch
    check(loaded, plan, result, tmp_path)
    names = {parameter.data_ptr(): name for name, parameter in loaded.module.named_parameters()}
    baseline = loaded.run()
    with prefetch_wrap(loaded, plan), observe() as calls:
        outputs = loaded.run()
    assert all(map(torch.equal, baseline, outputs))
    issued = [(names[call.weight.data_ptr()], call.max_size, call.offset) for call in calls]
    assert issued == [(p.weight, p.max_size, p.offset) for p in plan.prefetch] * 3


def test_the_rewritten_file_is_clean_and_patch_takes_it_back(
    case: tuple[LoadedModel, Plan, SourceResult], tmp_path: Path
) -> None:
    _, _, result = case
    assert_clean_and_taken_back(result, tmp_path)


def test_with_collectives_behind_o_proj_the_call_stays_right_behind_o_proj() -> None:
    """Above the reduce-scatter the tensor is another one: the attention gets a link to the weights instead."""
    _, _, result = rewritten("longcat_a3_ep128")
    after_o_proj = result.after.partition("attn_output = self.o_proj(attn_output)\n")[2].splitlines()
    assert after_o_proj[0].strip() == "if self.linked_mlp is not None:"
    assert "self.linked_mlp.router.classifier.weight, attn_output" in after_o_proj[1]
    assert "linked_mlp" not in rewritten("unsharded")[2].after


def test_the_same_diff_serves_a_role_without_experts(tmp_path: Path) -> None:
    """The file rewritten for role `all` still runs on the attention side, which has no `mlp`."""
    loaded, _, result = rewritten("longcat_a3_ep128")
    attention = load(
        load_spec("longcat_flash"), load_deployment("longcat_a3_ep128", role="attention"), "ge_graph", "tiny"
    )
    baseline = attention.run()
    for enabled in (False, True):
        module = attention.rebuild(load_rewritten(loaded, result, tmp_path), enable_prefetch=enabled)
        assert all(map(torch.equal, baseline, attention.run(module)))


def test_experts_output_reaches_the_next_layers_router_and_experts() -> None:
    _, _, result = rewritten("longcat_a3_ep32_ffn")
    behind = result.after.partition("expert_out = self.experts(x, scale, counts)\n")[2].splitlines()
    assert behind[0].strip() == "if self.next_mlp_router_classifier is not None:"
    assert "self.next_mlp_router_classifier.weight, expert_out" in behind[1]
    assert behind[2].strip() == "if self.next_mlp_experts is not None:"
    assert "self.next_mlp_experts.w13_weight, expert_out" in behind[3]


@pytest.mark.parametrize("realisation", ["source", "wrap"])
def test_the_compiled_decode_step_holds_the_plan_in_order(realisation: str, tmp_path: Path) -> None:
    deployment = "longcat_a3_ep32_ffn" if realisation == "source" else "qwen3_a2_tp1"
    loaded, plan, result = rewritten(deployment)
    if realisation == "source":
        module: Any = loaded.rebuild(load_rewritten(loaded, result, tmp_path), enable_prefetch=True)
    else:
        module = prefetch_wrap(loaded, plan).module
        del _cache[deployment]
    sizes: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list) -> Any:
        sizes[:] = [node.args[2] for node in graph.graph.nodes if "npu_prefetch" in str(node.target)]
        return graph.forward

    torch._dynamo.reset()
    eager = loaded.decode_once(module)
    compiled = loaded.decode_once(torch.compile(module, fullgraph=True, backend=backend, dynamic=False))
    assert torch.equal(eager, compiled)
    assert sizes == [p.max_size for p in plan.prefetch]


def test_a_graph_mode_without_multi_stream_is_refused_by_the_model(tmp_path: Path) -> None:
    loaded, _, result = rewritten("unsharded")
    python_module = load_rewritten(loaded, result, tmp_path)
    with pytest.raises(ValueError, match="enable_prefetch in exe_mode ge_graph needs enable_multi_stream"):
        loaded.rebuild(python_module, enable_prefetch=True, enable_multi_stream=0)
    loaded.rebuild(python_module, enable_prefetch=True, enable_multi_stream=0, exe_mode="eager")
