"""Laws over random expressions: the rewrite computes the same and issues the plan in order, whatever is nested how."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.transforms.text_models import rewrite

MODULES = 6
FILE = """\
import torch
from torch import nn

from models.prefetch import check_prefetch, npu_prefetch


class Pair(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, y=None):
        return self.inner(x), x


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        {modules}
        self.pair = Pair(config)

    def forward(self, x):
{body}


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([Layer(config) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""
STATEMENTS = (
    ["return {}"],
    ["h = {}", "return h"],
    ["x += {}", "return x"],
    ["h, y = {}, x", "return h - y"],
    ["if x is not None:", "    # comment", "    x = {}", "return x"],
    ["h: torch.Tensor = x * {}", "return h"],
)


@st.composite
def expressions(draw: st.DrawFn, unused: list[str], depth: int = 0) -> str:
    """An expression in which every module is called at most once."""
    kinds = ["x", "x * 2"] if depth > 3 or not unused else ["call", "call", "call", "sum", "relu", "view", "two"]
    kind = draw(st.sampled_from(kinds))
    inner = expressions(unused, depth + 1)
    if kind == "call":
        name = unused.pop(draw(st.integers(0, len(unused) - 1)))
        return f"self.{name}({draw(inner)})"
    if kind == "sum":
        return f"({draw(inner)} + {draw(inner)})"
    if kind == "relu":
        return f"torch.relu({draw(inner)})"
    if kind == "view":
        return f"({draw(inner)}).view(x.shape)"
    if kind == "two":
        return f"torch.add({draw(inner)}, other={draw(inner)})"
    return kind


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, dict[str, str]]:
    names = [f"m{k}" for k in range(MODULES)]
    unused = list(names)
    expression = draw(expressions(unused))
    called = [name for name in names if name not in unused]
    body = "\n".join(" " * 8 + line.format(expression) for line in draw(st.sampled_from(STATEMENTS)))
    text = FILE.format(modules="\n        ".join(f"self.{name} = nn.Linear(8, 8)" for name in names), body=body)
    targets = {}
    for name in draw(st.lists(st.sampled_from(called), unique=True, max_size=4)) if called else []:
        port = draw(st.sampled_from(["", ":input"]))
        layer = draw(st.sampled_from(["{i}", "{i+1}"]))
        target = draw(st.sampled_from([n for n in names if f"layers.{layer}.{n}.weight" not in targets]))
        targets[f"layers.{layer}.{target}.weight"] = f"layers.{{i}}.{name}{port}"
    return text, targets or {"layers.{i}.m0.weight": "layers.{i}"}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_any_expression_keeps_its_value_and_issues_the_plan_in_order(case: tuple[str, dict[str, str]]) -> None:
    text, targets = case
    with tempfile.TemporaryDirectory() as directory:
        rewrite(text, targets, Path(directory))
