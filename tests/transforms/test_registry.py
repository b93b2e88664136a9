"""Registered transforms: every one has an explanation and examples, and the examples are what it does."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from models.prefetch import observe
from models.problems import RefusedError
from models.superkernel import observe as observe_scopes
from tests.transforms.text_models import followed, load_text, opened, plan_for, rewrite
from transforms.example import Example
from transforms.prefetch_wrap import prefetch_wrap
from transforms.registry import TRANSFORMS, realise, transform
from transforms.wrap import wrap


def targets(example: Example) -> dict[str, str]:
    return {f"layers.{weight}": f"layers.{dependency}" for weight, dependency in example.targets}


def scopes(example: Example) -> list[tuple[str, str, str]]:
    return [(label, f"layers.{first}", f"layers.{last}") for label, first, last in example.scopes]


SOURCE_EXAMPLES = [e for name in ("prefetch.source", "superkernel.source") for e in TRANSFORMS[name].examples]


@pytest.mark.parametrize("example", SOURCE_EXAMPLES, ids=lambda e: e.title)
def test_source_examples_are_what_the_transform_writes(example: Example, tmp_path: Path) -> None:
    assert rewrite(example.before, targets(example), tmp_path, scopes=scopes(example)) == example.after


@pytest.mark.parametrize("example", TRANSFORMS["superkernel.wrap"].examples, ids=lambda e: e.title)
def test_wrap_examples_are_the_scopes_of_a_decode_step(example: Example, tmp_path: Path) -> None:
    loaded = load_text(example.before, tmp_path)
    plan = plan_for(loaded, {}, scopes=scopes(example))
    with wrap(loaded, plan) as module, followed(module) as seen:
        loaded.run(decode_steps=1)
    assert "".join(f"{s.label}: {s.first} {s.last}\n" for s in opened(seen)) == example.after


@pytest.mark.parametrize("example", TRANSFORMS["prefetch.wrap"].examples, ids=lambda e: e.title)
def test_wrap_examples_are_the_calls_of_a_decode_step(example: Example, tmp_path: Path) -> None:
    loaded = load_text(example.before, tmp_path)
    plan = plan_for(loaded, targets(example))
    names = {parameter.data_ptr(): name for name, parameter in loaded.module.named_parameters()}
    produced: dict[int, str] = {}
    for name, module in loaded.module.named_modules():
        module.register_forward_hook(lambda m, a, out, name=name: produced.setdefault(id(out), name) and None)
    with prefetch_wrap(loaded, plan), observe() as calls:
        loaded.run(decode_steps=1, before_decode=produced.clear)
    lines = [f"{names[c.weight.data_ptr()]} after {produced[id(c.dependency)]}\n" for c in calls]
    assert "".join(lines) == example.after


@pytest.mark.parametrize("name", TRANSFORMS)
def test_every_transform_is_explained_and_realises_a_plan(name: str, tmp_path: Path) -> None:
    registered = transform(name)
    assert registered.doc.endswith(".") and registered.examples
    loaded = load_text(registered.examples[0].before, tmp_path)
    plan = plan_for(loaded, targets(registered.examples[0]), scopes=scopes(registered.examples[0]))
    result = realise(name, loaded, plan)
    assert (result.source is not None) == registered.needs_source
    for enabled in (True, False):
        built = result.build(enabled, tmp_path / "rewritten")
        with observe() as calls, observe_scopes() as events:
            if hasattr(built, "__enter__"):
                with built as module:
                    loaded.run(module, decode_steps=2)
            else:
                loaded.run(built, decode_steps=2)
        assert len(calls) == (2 * len(plan.prefetch) if enabled else 0)
        assert len(events) == (4 * len(plan.scopes) if enabled else 0)


@pytest.mark.parametrize("name", ["source", "wrap"])
def test_one_realisation_has_both_levers(name: str, tmp_path: Path) -> None:
    text = TRANSFORMS["superkernel.source"].examples[0].before
    loaded = load_text(f"from models.prefetch import check_prefetch, npu_prefetch\n{text}", tmp_path)
    plan = plan_for(
        loaded,
        {"layers.{i}.mlp.weight": "layers.{i}.attention", "layers.{i}.attention.weight": "layers.{i}.norm:input"},
        scopes=[("attention_{i}", "layers.{i}.norm", "layers.{i}.attention")],
    )
    built = realise(name, loaded, plan).build(True, tmp_path / "rewritten")
    order: list[str] = []
    lent = built if hasattr(built, "__enter__") else nullcontext(built)
    with lent as module, observe(_Named(order, "prefetch")), observe_scopes(_Named(order, "scope")):
        loaded.run(module, decode_steps=1)
    # What waits for the input of the first module or for the output of the last one is issued outside.
    assert order == ["prefetch", "scope", "scope", "prefetch"] * 2


class _Named(list):
    """Notes that something was appended, in a list of names."""

    def __init__(self, names: list[str], name: str) -> None:
        super().__init__()
        self.names, self.name = names, name

    def append(self, item: object) -> None:
        self.names.append(self.name)


def test_an_unknown_transform_names_the_nearest() -> None:
    with pytest.raises(RefusedError, match=r"Did you mean `prefetch\.source`\?"):
        transform("prefetch.sourc")
