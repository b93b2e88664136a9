"""Registered transforms: every one has an explanation and examples, and the examples are what it does."""

from pathlib import Path

import pytest

from models.prefetch import observe
from models.problems import RefusedError
from tests.transforms.text_models import load_text, plan_for, rewrite
from transforms.example import Example
from transforms.prefetch_wrap import prefetch_wrap
from transforms.registry import TRANSFORMS, realise, transform


def targets(example: Example) -> dict[str, str]:
    return {f"layers.{weight}": f"layers.{dependency}" for weight, dependency in example.targets}


@pytest.mark.parametrize("example", TRANSFORMS["prefetch.source"].examples, ids=lambda e: e.title)
def test_source_examples_are_what_the_transform_writes(example: Example, tmp_path: Path) -> None:
    assert rewrite(example.before, targets(example), tmp_path) == example.after


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
    plan = plan_for(loaded, targets(registered.examples[0]))
    result = realise(name, loaded, plan)
    assert (result.source is not None) == registered.needs_source
    for enabled in (True, False):
        built = result.build(enabled, tmp_path / "rewritten")
        with observe() as calls:
            if hasattr(built, "__enter__"):
                with built as module:
                    loaded.run(module, decode_steps=2)
            else:
                loaded.run(built, decode_steps=2)
        assert len(calls) == (2 * len(plan.prefetch) if enabled else 0)


def test_an_unknown_transform_names_the_nearest() -> None:
    with pytest.raises(RefusedError, match=r"Did you mean prefetch\.source\?"):
        transform("prefetch.sourc")
