"""Switches, the check, helpers and imports: how a file gets what its prefetch statements need."""

from pathlib import Path

import pytest

from models.problems import RefusedError
from tests.transforms.text_models import load_text, plan_for, rewrite
from transforms.plan import Plan
from transforms.prefetch_source import prefetch_source

IMPORT = "from models.prefetch import check_prefetch, npu_prefetch\n"
LAYER = '''\
class Layer(nn.Module):
    def __init__(self, config):
        """A layer."""
        super().__init__()
        self.gate = nn.Linear(8, 8)
        self.down = nn.Linear(8, 8)

    def forward(self, x):
        """Two projections."""
        x = self.gate(x)
        return self.down(x)
'''
MODEL = """\
class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([Layer(config) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""
TARGETS = {"layers.{i}.down.weight": "layers.{i}.gate"}


def text(imports: str = IMPORT, layer: str = LAYER, model: str = MODEL) -> str:
    return f"import torch\nfrom torch import nn\n\n{imports}\n\n{layer}\n\n{model}"


def refusal(source: str, directory: Path) -> str:
    loaded = load_text(source, directory)
    with pytest.raises(RefusedError) as refused:
        prefetch_source(loaded, plan_for(loaded, TARGETS))
    return str(refused.value)


def test_statements_follow_docstrings_and_super(tmp_path: Path) -> None:
    after = rewrite(text(), TARGETS, tmp_path)
    assert '        """Two projections."""\n        prefetch = self.enable_prefetch' in after
    assert "        super().__init__()\n        self.enable_prefetch = getattr(" in after
    assert "        super().__init__()\n        check_prefetch(config)\n" in after


def test_a_file_of_another_tree_gets_helpers_of_its_own(tmp_path: Path) -> None:
    after = rewrite(text(imports=""), TARGETS, tmp_path)
    assert after.count("def npu_prefetch(") == after.count("def check_prefetch(") == 1
    assert "models.prefetch" not in after


def test_a_helper_that_the_tree_has_is_used(tmp_path: Path) -> None:
    own = "def npu_prefetch(switch, weight, depend, size, offset=0):\n    if switch:\n"
    own += "        torch.ops.npu.npu_prefetch(weight, depend, size, offset)\n"
    after = rewrite(text(imports=f"\n{own}"), TARGETS, tmp_path)
    assert own in after and after.count("def npu_prefetch(") == 1
    assert after.count("def check_prefetch(") == 1


def test_another_name_of_the_config_is_found(tmp_path: Path) -> None:
    layer = LAYER.replace("self, config", "self, infer_config")
    after = rewrite(text(layer=layer), TARGETS, tmp_path)
    assert 'self.enable_prefetch = getattr(infer_config, "enable_prefetch", False)' in after


def test_a_switch_that_the_class_has_is_kept(tmp_path: Path) -> None:
    line = 'self.enable_prefetch = bool(getattr(config, "enable_prefetch", False))'
    layer = LAYER.replace("        self.gate", f"        {line}\n        self.gate", 1)
    after = rewrite(text(layer=layer), TARGETS, tmp_path)
    assert after.count("self.enable_prefetch =") == 1


def test_the_switch_goes_to_the_class_that_all_instances_run(tmp_path: Path) -> None:
    """`forward` is inherited: the base's `__init__` sets the switch, also for a subclass with one of its own."""
    subclass = "class Layer(Base):\n    def __init__(self, config):\n        super().__init__(config)\n"
    layer = LAYER.replace("class Layer", "class Base") + f"\n\n{subclass}"
    after = rewrite(text(layer=layer), TARGETS, tmp_path)
    assert after.count("self.enable_prefetch =") == 1
    assert after.index("self.enable_prefetch =") < after.index("class Layer(Base)")


def test_a_class_without_a_config_is_refused(tmp_path: Path) -> None:
    layer = LAYER.replace("self, config", "self, size")
    assert "Layer.__init__ does not get the config" in refusal(text(layer=layer), tmp_path)


def test_a_model_without_a_config_is_refused(tmp_path: Path) -> None:
    model = MODEL.replace("self, config", "self, options").replace("Layer(config)", "Layer(options)")
    assert "Model.__init__ does not get the config" in refusal(text(model=model), tmp_path)


def test_a_call_of_another_size_is_not_overwritten(tmp_path: Path) -> None:
    """Sizes are changed in the original source, never in our own output."""
    loaded = load_text(text(), tmp_path)
    once = prefetch_source(loaded, plan_for(loaded, TARGETS, size=64))
    again = load_text(once.after, tmp_path)
    with pytest.raises(RefusedError, match="already, with 64 instead of 32"):
        prefetch_source(again, plan_for(again, TARGETS, size=32))


def test_in_our_own_tree_the_helpers_are_imported(tmp_path: Path) -> None:
    loaded = load_text(text(imports=""), tmp_path)
    loaded.python_module.__name__ = "models.some_model"
    for cls in (loaded.python_module.Layer, loaded.python_module.Model):
        cls.__module__ = "models.some_model"
    after = prefetch_source(loaded, plan_for(loaded, TARGETS)).after
    assert f"from torch import nn\n\n{IMPORT}\n" in after


def test_an_offset_is_written_and_issued(tmp_path: Path) -> None:
    loaded = load_text(text(), tmp_path)
    plan = plan_for(loaded, TARGETS)
    moved = Plan("m", "r", "eager", tuple(type(p)(**{**vars(p), "offset": 2048}) for p in plan.prefetch))
    after = prefetch_source(loaded, moved).after
    assert "npu_prefetch(prefetch, self.down.weight, x, 64, 2 * 1024)" in after
