"""SuperKernel scopes, alone and with prefetches, on the NPU-shaped models and on transformers' models."""

import copy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from models.loading import LoadedModel, load, load_deployment, load_spec
from models.superkernel import observe
from tests.transforms import real_models
from tests.transforms.patches import assert_clean_and_taken_back
from tests.transforms.real_models import TARGETS, make_plan
from tests.transforms.test_npu_models import targets_of
from tests.transforms.text_models import check, followed, make_scopes, opened
from transforms.plan import Plan
from transforms.realisation import SourceResult
from transforms.source import load_rewritten, rewrite
from transforms.wrap import wrap

LONGCAT = ("longcat_flash", "longcat_a3_ep128", "longcat_flash/decode_prefetch")
DEEPSEEK = ("deepseek_v3", "deepseek_a3_ep128", "deepseek_v3/decode_prefetch")
L = "layers.{i}."
CASES: dict[str, tuple[tuple[str, str, str], list[tuple[str, str, str]]]] = {
    "the reference's three": (
        LONGCAT,
        [
            ("prior_{i}", f"{L}input_layernorm.0", f"{L}post_attention_layernorm.0"),
            ("moe_{i}", f"{L}mlp", f"{L}mlp"),
            ("main_{i}", f"{L}mlps.0", f"{L}mlps.1"),
        ],
    ),
    "decoder layers": (LONGCAT, [("decoder_layers", "layers.0", "layers.2")]),
    "two attentions": (LONGCAT, [(f"attention_{{i}}_{k}", f"{L}self_attn.{k}", f"{L}self_attn.{k}") for k in (0, 1)]),
    "only layers with experts": (DEEPSEEK, [("moe_{i}", f"{L}mlp.gate", f"{L}mlp.experts")]),
    "others in other layers": (
        DEEPSEEK,
        [
            ("chain_0", "layers.0.input_layernorm", "layers.0.mlp"),
            *((f"chain_{i}_0", f"layers.{i}.input_layernorm", f"layers.{i}.post_attention_layernorm") for i in (1, 2)),
        ],
    ),
    "inside the attention": (
        ("qwen3", "qwen3_a2_tp1", "qwen3/decode_prefetch"),
        [("attention_{i}", f"{L}self_attn.qkv_proj", f"{L}self_attn.o_proj")],
    ),
}
_cache: dict[str, tuple[LoadedModel, Plan, SourceResult]] = {}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[LoadedModel, Plan, SourceResult]:
    return realised(request.param)


def realised(name: str) -> tuple[LoadedModel, Plan, SourceResult]:
    if name not in _cache:
        (model, deployment, recipe), scopes = CASES[name]
        loaded = load(load_spec(model), load_deployment(deployment), "ge_graph", "tiny")
        plan = replace(make_plan(loaded, targets_of(loaded, recipe)), scopes=make_scopes(loaded, scopes))
        _cache[name] = (loaded, plan, rewrite(loaded, plan))
    return _cache[name]


def test_both_levers_in_one_rewrite_do_what_is_planned(
    case: tuple[LoadedModel, Plan, SourceResult], tmp_path: Path
) -> None:
    loaded, plan, result = case
    assert plan.scopes and plan.prefetch
    check(loaded, plan, result, tmp_path)


def test_scopes_alone_do_too(case: tuple[LoadedModel, Plan, SourceResult], tmp_path: Path) -> None:
    loaded, plan, _ = case
    alone = replace(plan, prefetch=())
    result = rewrite(loaded, alone)
    check(loaded, alone, result, tmp_path)
    assert "prefetch" not in "".join(line for line in result.diff.splitlines() if line.startswith("+"))


def test_the_rewritten_file_is_clean_and_patch_takes_it_back(
    case: tuple[LoadedModel, Plan, SourceResult], tmp_path: Path
) -> None:
    _, _, result = case
    assert_clean_and_taken_back(result, tmp_path)


def test_wrap_opens_the_same_scopes_and_can_be_undone(case: tuple[LoadedModel, Plan, SourceResult]) -> None:
    loaded, plan, _ = case
    keys, baseline = list(loaded.module.state_dict()), loaded.run()
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in loaded.module.modules()]
    with wrap(loaded, plan) as module, followed(module) as seen:
        assert list(module.state_dict()) == keys
        assert all(map(torch.equal, baseline, loaded.run()))
    assert opened(seen) == list(plan.scopes) * 3
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in loaded.module.modules()] == hooks


@pytest.mark.parametrize("realisation", ["source", "wrap"])
def test_a_step_that_raises_inside_a_scope_closes_it(realisation: str, tmp_path: Path) -> None:
    loaded, plan, result = realised("inside the attention")
    if realisation == "source":
        module = loaded.rebuild(load_rewritten(loaded, result, tmp_path), enable_superkernel=True)
    else:
        module = wrap(replace(loaded, module=copy.deepcopy(loaded.module)), plan).module
    fails = [True]

    def fail(child: torch.nn.Module, arguments: Any) -> None:
        if fails[0] and len(scopes) == 3:
            raise RuntimeError("in the second layer")

    inside = module.get_submodule(plan.scopes[1].last)
    inside.register_forward_pre_hook(fail)
    with observe() as scopes, pytest.raises(RuntimeError, match="second layer"):
        loaded.run(module, decode_steps=1)
    done, cut = plan.scopes[:2]
    assert [(s.opened, s.label) for s in scopes] == [(o, s.label) for s in (done, cut) for o in (True, False)]
    fails[0] = False
    with observe() as scopes:
        loaded.run(module, decode_steps=1)
    assert [s.label for s in scopes if s.opened] == [s.label for s in plan.scopes]
    assert [s.label for s in scopes if not s.opened] == [s.label for s in plan.scopes]


@pytest.mark.parametrize("realisation", ["source", "wrap"])
def test_a_compiled_decode_step_opens_and_closes_them_in_order(realisation: str, tmp_path: Path) -> None:
    loaded, plan, result = realised("the reference's three")
    if realisation == "source":
        module: Any = loaded.rebuild(load_rewritten(loaded, result, tmp_path), enable_superkernel=True)
    else:
        module = wrap(loaded, plan).module
        del _cache["the reference's three"]
    found: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list) -> Any:
        scopes = (
            node
            for node in graph.graph.nodes
            if "npu_recipes_scope" in str(getattr(node.target, "__module__", "")) + str(node.target)
        )
        found[:] = [f"{'open' if 'open' in str(node.target) else 'close'} {node.args[0]}" for node in scopes]
        return graph.forward

    torch._dynamo.reset()
    eager = loaded.decode_once(module)
    compiled = loaded.decode_once(torch.compile(module, fullgraph=True, backend=backend, dynamic=False))
    assert torch.equal(eager, compiled)
    assert found == [f"{what} {scope.label}" for scope in plan.scopes for what in ("open", "close")]


def test_the_diff_of_a_whole_body_is_one_more_context() -> None:
    _, _, result = realised("the reference's three")
    after = result.after
    assert 'two_streams),\n            superkernel_scope(superkernel, f"main_{self.layer_idx}", ' in after
    assert 'superkernel_scope(superkernel, f"moe_{self.layer_idx}", "stream-fusion=1"),\n            ):' in after


# ------------------------------------------------------------------------------------------------ transformers' models

REAL = {
    "llama": [("attention_{i}", f"{L}input_layernorm", f"{L}self_attn")],
    "qwen3_moe": [("decode_layers", "layers.0", "layers.2")],
    "deepseek_v3": [("moe_{i}", f"{L}mlp.gate", f"{L}mlp.experts")],
    "longcat_flash": [
        ("prior_{i}", f"{L}input_layernorm.0", f"{L}post_attention_layernorm.0"),
        ("moe_{i}", f"{L}mlp", f"{L}mlp"),
        ("main_{i}", f"{L}mlps.0", f"{L}mlps.1"),
    ],
}


STRATEGIES = {
    "attention": [("attention_{i}", f"{L}self_attn", f"{L}self_attn")],
    "decoder_layers": [("decoder_layers", "layers.0", "layers.2")],
}


@pytest.mark.parametrize("name", REAL)
def test_files_of_other_trees_get_a_helper_of_their_own(name: str, tmp_path: Path) -> None:
    loaded = real_models.load(name)
    plan = replace(make_plan(loaded, TARGETS[name]), scopes=make_scopes(loaded, REAL[name]))
    assert plan.scopes
    result = rewrite(loaded, plan)
    check(loaded, plan, result, tmp_path)
    assert result.after.count("class superkernel_scope") == result.after.count("def check_superkernel(") == 1


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("llama", "attention"),
        ("deepseek_v3", "attention"),
        ("qwen3_moe", "decoder_layers"),
        ("gpt_oss", "decoder_layers"),
    ],
)
def test_strategies_on_them_as_source_as_diff_and_as_wrap(name: str, strategy: str, tmp_path: Path) -> None:
    loaded = real_models.load(name)
    plan = replace(make_plan(loaded, TARGETS[name]), prefetch=(), scopes=make_scopes(loaded, STRATEGIES[strategy]))
    result = rewrite(loaded, plan)
    check(loaded, plan, result, tmp_path)
    target = Path(tmp_path, *loaded.python_module.__name__.split(".")).with_suffix(".py")
    target.parent.mkdir(parents=True)
    codes = {}
    for text in (result.before, result.after):
        target.write_text(text)
        for command in (["format", "--check"], ["check", "--select", "F,W,I"]):
            options = ["--isolated", "--line-length", "119", str(target)]
            done = subprocess.run([sys.executable, "-m", "ruff", *command, *options], capture_output=True)
            codes[text, command[0]] = done.returncode
    assert all(codes[result.after, command] <= codes[result.before, command] for command in ("format", "check"))
    for arguments, expected in ((["-R"], result.before), ([], result.after)):
        subprocess.run(["patch", "-p1", "-s", *arguments], input=result.diff, text=True, cwd=tmp_path, check=True)
        assert target.read_text() == expected
    baseline = loaded.run()
    with wrap(loaded, plan) as module, followed(module) as seen:
        assert all(map(torch.equal, baseline, loaded.run()))
    assert opened(seen) == list(plan.scopes) * 3
