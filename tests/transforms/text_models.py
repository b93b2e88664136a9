"""Models written as text in a test, loaded from a file, that look like a `LoadedModel`."""

import importlib.util
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from models.prefetch import observe
from models.superkernel import ScopeEvent
from models.superkernel import observe as observe_scopes
from tests.transforms.real_models import events, make_plan
from transforms import source
from transforms.plan import Plan, Scope
from transforms.realisation import SourceResult
from transforms.source import load_rewritten

SIZE = 8
OPTIONS = (("stream-fusion", "1"),)
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
    config = SimpleNamespace(**{"exe_mode": "ge_graph", "enable_multi_stream": 1, **switches})
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


Scopes = Sequence[tuple[str, str, str]]


def plan_for(
    loaded: TextModel, targets: dict[str, str], size: int = 64, scopes: Scopes = (), exe_mode: str = "ge_graph"
) -> Plan:
    """Weight -> dependency, and (label, first, last), all below the root, `{i}` allowed."""
    entries = [(weight, weight, dependency, size) for weight, dependency in targets.items()]
    return replace(make_plan(loaded, entries, exe_mode), scopes=make_scopes(loaded, scopes))


def make_scopes(loaded: Any, scopes: Scopes, options: tuple[tuple[str, str], ...] = OPTIONS) -> tuple[Scope, ...]:
    """Expand `{i}` in (label, first, last) for all layers that have both modules; in execution order."""
    modules = dict(loaded.module.named_modules())
    prefix = f"{loaded.root}." if loaded.root else ""
    found: dict[Scope, int] = {}
    when = events(loaded)
    for index in range(len(modules[prefix + loaded.layers])):
        for texts in scopes:
            label, first, last = (text.replace("{i}", str(index)) for text in texts)
            first, last = prefix + first, prefix + last
            if first in modules and last in modules:
                found[Scope(label, options, first, last)] = when.get(first, (0, 0))[0]
    return tuple(sorted(found, key=found.__getitem__))


def rewrite(
    text: str,
    targets: dict[str, str],
    directory: Path,
    next_n: int = 0,
    scopes: Scopes = (),
    exe_mode: str = "ge_graph",
) -> str:
    """The rewritten text, after proving that it does what the plan says and that a second rewrite changes nothing."""
    loaded = load_text(text, directory)
    loaded.deployment.next_n = next_n
    plan = plan_for(loaded, targets, scopes=scopes, exe_mode=exe_mode)
    assert plan.prefetch or plan.scopes
    result = source.rewrite(loaded, plan)
    check(loaded, plan, result, directory)
    return result.after


def check(loaded: Any, plan: Plan, result: SourceResult, directory: Path) -> None:
    """Bit-equal on and off; with the switch on exactly the plan in every decode step; twice = once; keys unchanged."""
    rewritten = load_rewritten(loaded, result, directory / "rewritten")
    baseline = loaded.run()
    for enabled in (False, True):
        switches = {**source.switches(plan, enabled), "exe_mode": plan.exe_mode, "enable_multi_stream": 1}
        module = loaded.rebuild(rewritten, **switches)
        assert list(module.state_dict()) == list(loaded.module.state_dict())
        prefilled: list[int] = []
        with observe() as calls, followed(module) as seen:

            def note(calls: list = calls, seen: list = seen, prefilled: list[int] = prefilled) -> None:
                prefilled.append(len(calls) + len(opened(seen)))

            outputs = loaded.run(module, before_decode=note)
        assert all(map(torch.equal, baseline, outputs))
        assert prefilled == [0], "a call or a scope in prefill"
        names = {parameter.data_ptr(): name for name, parameter in module.named_parameters(remove_duplicate=False)}
        issued = [(names[call.weight.data_ptr()], call.max_size, call.offset) for call in calls]
        planned = [(p.weight, p.max_size, p.offset) for p in plan.prefetch]
        assert issued == (planned * 3 if enabled else [])
        assert opened(seen) == (list(plan.scopes) * 3 if enabled else [])
    again = type(loaded)(**{**vars(loaded), "module": module, "python_module": rewritten})
    assert source.rewrite(again, plan).diff == ""


@contextmanager
def followed(module: nn.Module) -> Iterator[list[Any]]:
    """Scopes and module calls (`(fqn, entered)`) in the order in which they happen."""
    handles, seen = [], []
    for name, child in module.named_modules():
        handles.append(child.register_forward_pre_hook(lambda m, a, name=name: seen.append((name, True))))
        leave = child.register_forward_hook(lambda m, a, out, name=name: seen.append((name, False)), prepend=True)
        handles.append(leave)
    with observe_scopes(seen):
        yield seen
    for handle in handles:
        handle.remove()


def opened(seen: list[Any]) -> list[Scope]:
    """The scopes, each with the first module that was entered and the last that was left inside."""
    scopes: list[Scope] = []
    inside: list[tuple[str, bool]] | None = None
    for event in seen:
        if not isinstance(event, ScopeEvent):
            if inside is not None:
                inside.append(event)
        elif event.opened:
            assert inside is None, "a scope in a scope"
            inside = []
        else:
            assert inside and inside[0][1] and not inside[-1][1], f"{event.label} cuts a module"
            options = tuple(tuple(option.split("=")) for option in event.options.split(":") if option)
            scopes.append(Scope(event.label, options, inside[0][0], inside[-1][0]))  # type: ignore[arg-type]
            inside = None
    assert inside is None, "a scope is left open"
    return scopes
