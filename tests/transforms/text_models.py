"""Models written as text in a test, loaded from a file, that look like a `LoadedModel`."""

import importlib.util
import inspect
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from models.prefetch import observe
from tests.transforms.real_models import make_plan
from transforms.plan import Plan
from transforms.prefetch_source import SourceResult, load_rewritten, prefetch_source

SIZE = 8
_serial = itertools.count()


@dataclass
class TextModel:
    """`Model(config)` of a text, called with [2, 5, 8] in prefill and [2, 1, 8] in decode."""

    python_module: ModuleType
    module: nn.Module
    root: str = ""
    layers: str = "layers"
    deployment: Any = field(default_factory=lambda: SimpleNamespace(next_n=0))

    @torch.no_grad()
    def run(
        self,
        module: nn.Module | None = None,
        decode_steps: int = 3,
        before_decode: Callable[[], None] = lambda: None,
    ) -> list[torch.Tensor]:
        module = module or self.module
        outputs = [self._call(module, torch.ones(2, 5, SIZE), True)]
        before_decode()
        tokens = 1 + self.deployment.next_n
        outputs += [
            self._call(module, torch.full((2, tokens, SIZE), float(step)), False) for step in range(decode_steps)
        ]
        return outputs

    def rebuild(self, python_module: ModuleType, **switches: Any) -> nn.Module:
        module = build(python_module, **switches)
        module.load_state_dict(self.module.state_dict(), strict=True, assign=True)
        return module

    def _call(self, module: nn.Module, x: torch.Tensor, is_prefill: bool) -> torch.Tensor:
        names = inspect.signature(module.forward).parameters
        phase = {"is_prefill": is_prefill} if "is_prefill" in names else {}
        if "forward_metadata" in names:
            phase["forward_metadata"] = SimpleNamespace(is_prefill=is_prefill)
        return module(x, **phase)


def build(python_module: ModuleType, **switches: Any) -> nn.Module:
    torch.manual_seed(0)
    config = SimpleNamespace(**switches)
    return python_module.Model(config).eval().requires_grad_(False)


def load_text(text: str, directory: Path) -> TextModel:
    name = f"text_model_{next(_serial)}"
    path = directory / f"{name}.py"
    path.write_bytes(text.encode())
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    python_module = importlib.util.module_from_spec(spec)
    sys.modules[name] = python_module
    spec.loader.exec_module(python_module)
    return TextModel(python_module, build(python_module))


def plan_for(loaded: TextModel, targets: dict[str, str], size: int = 64) -> Plan:
    """Weight -> dependency, both below the root, `{i}` allowed."""
    return make_plan(loaded, [(weight, weight, dependency, size) for weight, dependency in targets.items()])


def rewrite(text: str, targets: dict[str, str], directory: Path, next_n: int = 0) -> str:
    """The rewritten text, after proving that it does what the plan says and that a second rewrite changes nothing."""
    loaded = load_text(text, directory)
    loaded.deployment.next_n = next_n
    plan = plan_for(loaded, targets)
    assert plan.prefetch
    result = prefetch_source(loaded, plan)
    check(loaded, plan, result, directory)
    return result.after


def check(loaded: Any, plan: Plan, result: SourceResult, directory: Path) -> None:
    """Bit-equal on and off; with the switch on exactly the plan in every decode step; twice = once; keys unchanged."""
    rewritten = load_rewritten(loaded, result, directory / "rewritten")
    baseline = loaded.run()
    for enabled in (False, True):
        module = loaded.rebuild(rewritten, enable_prefetch=enabled)
        assert list(module.state_dict()) == list(loaded.module.state_dict())
        prefilled: list[int] = []
        with observe() as calls:
            outputs = loaded.run(module, before_decode=lambda calls=calls, seen=prefilled: seen.append(len(calls)))
        assert all(map(torch.equal, baseline, outputs))
        assert prefilled == [0], "a call in prefill"
        names = {parameter.data_ptr(): name for name, parameter in module.named_parameters(remove_duplicate=False)}
        issued = [(names[call.weight.data_ptr()], call.max_size, call.offset) for call in calls]
        planned = [(p.weight, p.max_size, p.offset) for p in plan.prefetch]
        assert issued == (planned * 3 if enabled else [])
    again = type(loaded)(**{**vars(loaded), "module": module, "python_module": rewritten})
    assert prefetch_source(again, plan).diff == ""
