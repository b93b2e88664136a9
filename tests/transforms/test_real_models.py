"""The source and the wrap realisation on real transformers files: same numbers, exactly the plan, a clean diff."""

import copy
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from models.prefetch import observe
from tests.transforms import real_models
from tests.transforms.text_models import check
from transforms.plan import Plan
from transforms.prefetch_source import load_rewritten, prefetch_source
from transforms.prefetch_wrap import prefetch_wrap
from transforms.realisation import SourceResult
from transforms.recording import record

_cache: dict[str, tuple[Any, Plan, SourceResult]] = {}


@pytest.fixture(params=real_models.TARGETS)
def case(request: pytest.FixtureRequest) -> tuple[Any, Plan, SourceResult]:
    return rewritten(request.param)


def rewritten(name: str) -> tuple[Any, Plan, SourceResult]:
    if name not in _cache:
        loaded = real_models.load(name)
        plan = real_models.make_plan(loaded, real_models.TARGETS[name])
        _cache[name] = (loaded, plan, prefetch_source(loaded, plan))
    return _cache[name]


def issued(loaded: Any, module: torch.nn.Module | None = None) -> list[tuple[str, int]]:
    """(weight, size) of one decode step."""
    module = module or loaded.module
    names = {p.data_ptr(): name for name, p in module.named_parameters()}
    with observe() as calls:
        loaded.run(module, decode_steps=1)
    return [(names[call.weight.data_ptr()], call.max_size) for call in calls]


def test_source_equals_wrap_equals_plan(case: tuple[Any, Plan, SourceResult], tmp_path: Path) -> None:
    loaded, plan, result = case
    check(loaded, plan, result, tmp_path)
    baseline = loaded.run()
    with prefetch_wrap(loaded, plan):
        assert issued(loaded) == [(p.weight, p.max_size) for p in plan.prefetch]
        assert all(map(torch.equal, baseline, loaded.run()))
    assert issued(loaded) == []


def test_the_diff_applies_and_its_reverse_gives_the_file_back(
    case: tuple[Any, Plan, SourceResult], tmp_path: Path
) -> None:
    loaded, _, result = case
    target = Path(tmp_path, *loaded.python_module.__name__.split(".")).with_suffix(".py")
    target.parent.mkdir(parents=True)
    target.write_text(result.before)
    for arguments, expected in (([], result.after), (["-R"], result.before)):
        subprocess.run(["patch", "-p1", "-s", *arguments], input=result.diff, text=True, cwd=tmp_path, check=True)
        assert target.read_text() == expected


def test_ruff_finds_nothing_new(case: tuple[Any, Plan, SourceResult], tmp_path: Path) -> None:
    _, _, result = case
    options = ["--isolated", "--line-length", "119"]
    file = tmp_path / "modeling.py"
    for command in (["format", "--check"], ["check", "--select", "F,W,I"]):
        codes = []
        for text in (result.before, result.after):
            file.write_text(text)
            done = subprocess.run([sys.executable, "-m", "ruff", *command, *options, str(file)], capture_output=True)
            codes.append(done.returncode)
        assert codes[1] <= codes[0], done.stdout.decode()


def test_only_intended_lines_change(case: tuple[Any, Plan, SourceResult]) -> None:
    _, _, result = case
    removed = [line for line in result.diff.splitlines() if line.startswith("-") and not line.startswith("---")]
    assert len(removed) <= 3  # a call that got a name, and the `_` that got one
    assert max(map(len, result.after.splitlines())) <= max(119, *map(len, result.before.splitlines()))


def test_a_second_plan_reuses_the_recording() -> None:
    loaded, plan, first = rewritten("longcat_flash")
    recording = record(loaded)
    halved = Plan(**{**vars_of(plan), "prefetch": tuple(half(p) for p in plan.prefetch)})
    assert prefetch_source(loaded, plan, recording).after == first.after
    second = prefetch_source(loaded, halved, recording)
    assert second.after == prefetch_source(loaded, halved).after != first.after
    assert prefetch_source(loaded, plan, recording).after == first.after  # the recording was not changed


def half(entry: Any) -> Any:
    return type(entry)(**{**vars(entry), "max_size": entry.max_size // 2})


def vars_of(plan: Plan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in Plan.__dataclass_fields__}


def test_copies_pickles_and_new_parameters_prefetch_their_own_weights(tmp_path: Path) -> None:
    loaded, plan, result = rewritten("llama")
    module = loaded.rebuild(load_rewritten(loaded, result, tmp_path), enable_prefetch=True)
    copied = copy.deepcopy(module)
    assert copied.model.layers[0].next_self_attn_q_proj is copied.model.layers[1].self_attn.q_proj
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    module.save_pretrained(tmp_path / "checkpoint")
    loaded_again = type(module).from_pretrained(tmp_path / "checkpoint")
    for model in (copied, torch.load(buffer, weights_only=False), loaded_again):
        assert issued(loaded, model) == [(p.weight, p.max_size) for p in plan.prefetch]
    assert len(list(module.named_parameters())) == len(list(loaded.module.named_parameters()))


def compiled_step(module: torch.nn.Module, backend: Any) -> tuple[torch.Tensor, torch.Tensor]:
    from transformers import StaticCache

    torch._dynamo.reset()
    module.set_experts_implementation("batched_mm")
    ids = torch.arange(6).view(2, 3)
    outputs = []
    with torch.no_grad():
        for run in (module, torch.compile(module, fullgraph=True, backend=backend, dynamic=False)):
            cache = StaticCache(config=module.config, max_cache_len=16)
            module(input_ids=ids, cache=cache, use_cache=True)
            outputs.append(run(input_ids=ids[:, :1], cache=cache, use_cache=True).logits)
    return outputs[0], outputs[1]


@pytest.mark.parametrize(("name", "realisation"), [("gpt_oss", "source"), ("qwen3", "wrap")])
def test_the_compiled_step_holds_the_plan_in_order(name: str, realisation: str, tmp_path: Path) -> None:
    loaded, plan, result = rewritten(name)
    loaded = real_models.load(name)  # a compiled graph must not outlive the wrapping
    if realisation == "source":
        module = loaded.rebuild(load_rewritten(loaded, result, tmp_path), enable_prefetch=True)
    else:
        module = prefetch_wrap(loaded, plan).module
    sizes: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list) -> Any:
        sizes[:] = [node.args[2] for node in graph.graph.nodes if "npu_prefetch" in str(node.target)]
        return graph.forward

    assert torch.equal(*compiled_step(module, backend))
    assert sizes == [p.max_size for p in plan.prefetch]
    with observe() as calls:
        compiled_step(module, "aot_eager")
    # eager step and compiled step, each behind a prefill
    assert [call.max_size for call in calls] == [p.max_size for p in plan.prefetch] * 2


@pytest.mark.parametrize("realisation", ["source", "wrap"])
def test_export_keeps_the_calls_and_the_state(realisation: str, tmp_path: Path) -> None:
    loaded, plan, result = rewritten("llama")
    loaded = real_models.load("llama")
    if realisation == "source":
        module = loaded.rebuild(load_rewritten(loaded, result, tmp_path), enable_prefetch=True)
    else:
        module = prefetch_wrap(loaded, plan).module

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, use_cache=False).logits

    with torch.no_grad():
        program = torch.export.export(Step(), (torch.ones(2, 1, dtype=torch.long),))
    assert sum("npu_prefetch" in str(node.target) for node in program.graph.nodes) == len(plan.prefetch)
    assert len(program.state_dict) == len(loaded.module.state_dict())


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"exe_mode": "ge_graph"}, "enable_prefetch in exe_mode ge_graph needs enable_multi_stream"),
        ({"exe_mode": "aclgraph", "enable_multi_stream": 1}, "does not work in exe_mode aclgraph"),
    ],
)
def test_the_model_refuses_modes_without_prefetch(switches: dict, message: str, tmp_path: Path) -> None:
    loaded, _, result = rewritten("llama")
    python_module = load_rewritten(loaded, result, tmp_path)
    with pytest.raises(ValueError, match=message):
        loaded.rebuild(python_module, enable_prefetch=True, **switches)
    loaded.rebuild(python_module, enable_prefetch=False, **switches)
    loaded.rebuild(python_module, enable_prefetch=True, exe_mode="ge_graph", enable_multi_stream=1)
    loaded.rebuild(python_module, enable_prefetch=True)  # eager, for testing


def test_a_generated_file_is_pointed_out() -> None:
    assert "generated" in rewritten("longcat_flash")[2].notes[0]
    assert rewritten("llama")[2].notes == ()
