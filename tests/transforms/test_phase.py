"""Decode only: an explicit phase if there is one, else the length of the sequence dimension."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from models.problems import RefusedError
from tests.transforms.text_models import rewrite
from transforms.phase import is_decode

FILE = """\
import torch
from torch import nn

from models.prefetch import check_prefetch, npu_prefetch


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(8, 8)
        self.down = nn.Linear(8, 8)

{layer}

class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([Layer(config) for _ in range(2)])

{model}
"""
PLAIN_MODEL = """
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""
TARGETS = {"layers.{i}.down.weight": "layers.{i}.gate"}


def after(layer: str, model: str, directory: Path, next_n: int = 0) -> str:
    return rewrite(FILE.format(layer=layer, model=model), TARGETS, directory, next_n)


def called_with(arguments: str, parameters: str = "is_prefill") -> str:
    return f"""
    def forward(self, x, {parameters}):
        for layer in self.layers:
            x = layer(x{arguments})
        return x
"""


def layer(parameters: str) -> str:
    return f"""
    def forward(self, x{parameters}):
        return self.down(self.gate(x))
"""


def guard(text: str) -> str:
    (line,) = (line.strip() for line in text.splitlines() if "prefetch = self.enable_prefetch and" in line)
    return line.removeprefix("prefetch = self.enable_prefetch and ").removesuffix("  # decode only")


def test_an_argument_tells(tmp_path: Path) -> None:
    assert guard(after(layer(", is_prefill"), called_with(", is_prefill"), tmp_path)) == "not is_prefill"


def test_an_attribute_of_an_argument_tells(tmp_path: Path) -> None:
    text = after(layer(", meta"), called_with(", forward_metadata", "forward_metadata"), tmp_path)
    assert guard(text) == "not meta.is_prefill"


def test_metadata_that_may_be_left_out_is_asked_for(tmp_path: Path) -> None:
    text = after(layer(", meta=None"), called_with(", forward_metadata", "forward_metadata"), tmp_path)
    assert guard(text) == "meta is not None and not meta.is_prefill"


def test_a_flag_for_decode_is_used_as_it_is(tmp_path: Path) -> None:
    assert guard(after(layer(", is_decode"), called_with(", not is_prefill"), tmp_path)) == "is_decode"


def test_a_default_that_would_mean_decode_is_not_believed(tmp_path: Path) -> None:
    """A caller that forgets `is_prefill=False` would prefetch in prefill: the shape is used instead."""
    text = after(layer(", is_prefill=False"), called_with(", is_prefill"), tmp_path)
    assert guard(text) == "x.shape[1] == 1"
    text = after(layer(", is_prefill=True"), called_with(", is_prefill"), tmp_path)
    assert guard(text) == "not is_prefill"


def test_without_a_phase_the_sequence_dimension_tells(tmp_path: Path) -> None:
    assert guard(after(layer(""), PLAIN_MODEL, tmp_path)) == "x.shape[1] == 1"


def test_speculative_tokens_belong_to_a_decode_step(tmp_path: Path) -> None:
    assert guard(after(layer(""), PLAIN_MODEL, tmp_path, next_n=1)) == "x.shape[1] <= 2"


def test_where_no_argument_tells_the_first_result_does_for_all_calls_behind_it(tmp_path: Path) -> None:
    optional = """
    def forward(self, x: torch.Tensor | None):
        y = self.gate(x)
        return self.down(y)
"""
    text = rewrite(
        FILE.format(layer=optional, model=PLAIN_MODEL),
        {"layers.{i}.down.weight": "layers.{i}.gate", "layers.{i+1}.gate.weight": "layers.{i}.down"},
        tmp_path,
    )
    assert guard(text) == "y.shape[1] == 1"
    assert text.count("npu_prefetch(prefetch, ") == 2


def test_the_length_is_taken_at_entry_before_tokens_are_flattened(tmp_path: Path) -> None:
    flat = """
    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, 8)
        return self.down(self.gate(x)).view(shape)
"""
    text = after(flat, PLAIN_MODEL, tmp_path)
    assert guard(text) == "x.shape[1] == 1"
    assert text.index("x.shape[1] == 1") < text.index("x.reshape")


FLAT_LAYER = """
    def forward(self, x):
        return self.down(self.gate(x))
"""


def test_the_caller_decides_where_only_flat_tokens_are_seen(tmp_path: Path) -> None:
    """The argument is off by default, so that a caller that does not know it never prefetches."""
    calls_flat = """
    def forward(self, x):
        shape = x.shape
        x = self.layers[0](x.reshape(-1, 8))
        x = self.layers[1](x)
        return x.view(shape)
"""
    text = after(FLAT_LAYER, calls_flat, tmp_path)
    assert "def forward(self, x, prefetch=False):" in text
    assert "x = self.layers[0](x.reshape(-1, 8), prefetch=prefetch)" in text
    assert guard(text) == "x.shape[1] == 1"


def test_the_argument_keeps_the_layout_of_the_others(tmp_path: Path) -> None:
    typed = """
    def forward(
        self,
        x: torch.Tensor,
        scale: float = 1.0,
        **kwargs,
    ) -> torch.Tensor:
        return self.down(self.gate(x)) * scale
"""
    calls = """
    def forward(self, x):
        shape = x.shape
        x = self.layers[0](
            x.reshape(-1, 8),
            scale=2.0,
        )
        x = self.layers[1](x.reshape(-1, 8), scale=float(2.0), another_argument_that_is_long=1)
        return x.view(shape)
"""
    text = after(typed, calls, tmp_path)
    assert "        scale: float = 1.0,\n        prefetch: bool = False,\n        **kwargs,\n" in text
    assert "            scale=2.0,\n            prefetch=prefetch,\n        )\n" in text
    assert (
        "        x = self.layers[1](\n"
        "            x.reshape(-1, 8),\n"
        "            scale=float(2.0),\n"
        "            another_argument_that_is_long=1,\n"
        "            prefetch=prefetch,\n"
        "        )\n" in text
    )


def test_nothing_that_tells_is_refused(tmp_path: Path) -> None:
    all_flat = """
    def forward(self, x):
        shape, x = x.shape, x.reshape(-1, 8)
        for layer in self.layers:
            x = layer(x)
        return x.view(shape)
"""
    with pytest.raises(RefusedError, match=r"Layer\.forward can't tell decode from prefill"):
        after(FLAT_LAYER, all_flat, tmp_path)


def test_a_helper_method_uses_its_own_arguments(tmp_path: Path) -> None:
    helper = """
    def forward(self, x):
        return self.mix(x)

    def mix(self, y):
        return self.down(self.gate(y))
"""
    assert guard(after(helper, PLAIN_MODEL, tmp_path)) == "y.shape[1] == 1"


def test_an_argument_that_may_be_none_is_not_asked_for_its_shape(tmp_path: Path) -> None:
    """Model-level forwards take ids or embeddings; the dependency itself is asked instead."""
    optional = """
    def forward(self, x: torch.Tensor | None = None):
        h = self.gate(x)
        return self.down(h)
"""
    assert guard(after(optional, PLAIN_MODEL, tmp_path)) == "h.shape[1] == 1"


def test_the_same_rule_at_run_time() -> None:
    tokens = torch.ones(2, 1, 8)
    assert not is_decode({"x": tokens, "is_prefill": True}, 1)
    assert is_decode({"x": torch.ones(10, 8), "forward_metadata": SimpleNamespace(is_prefill=False)}, 1)
    assert is_decode({"x": tokens}, 1)
    assert not is_decode({"x": torch.ones(2, 5, 8)}, 1)
    assert is_decode({"x": torch.ones(2, 2, 8)}, 2)
    assert is_decode({"attention_mask": torch.ones(2, 6), "input_ids": None, "inputs_embeds": tokens}, 1)
    assert not is_decode({"x": None}, 1)
