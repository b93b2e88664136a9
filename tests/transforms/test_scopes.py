"""SuperKernel scopes in source: which statements are inside, what is named, what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from models.problems import RefusedError
from models.superkernel import superkernel_scope
from tests.transforms.text_models import load_text, make_scopes, plan_for, rewrite
from transforms.plan import Plan, Scope
from transforms.source import realise
from transforms.source import rewrite as rewrite_source

FILE = """\
import contextlib

import torch
from torch import nn

from models.prefetch import check_prefetch, npu_prefetch
from models.superkernel import check_superkernel, superkernel_scope


class Layer(nn.Module):
    def __init__(self, config, role):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.Linear(8, 8)
        self.up = nn.Linear(8, 8)
        self.down = nn.Linear(8, 8)

    def forward(self, x, is_prefill):
{body}


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([Layer(config, i) for i in range(3)])
        self.head = nn.Linear(8, 8)

    def forward(self, x, is_prefill):
        for layer in self.layers:
            x = layer(x, is_prefill)
        return self.head(x)
"""
ATTENTION = [("attention_{i}", "layers.{i}.norm", "layers.{i}.attention")]
MLP = [("mlp_{i}", "layers.{i}.up", "layers.{i}.down")]


def file(*lines: str) -> str:
    return FILE.format(body="\n".join(" " * 8 + line if line else "" for line in lines))


def scoped(tmp_path: Path, lines: list[str], scopes: list[tuple[str, str, str]], **targets: str) -> str:
    return rewrite(file(*lines), targets, tmp_path, scopes=scopes)


def refused(tmp_path: Path, lines: list[str], scopes: list[tuple[str, str, str]]) -> str:
    with pytest.raises(RefusedError) as refusal:
        scoped(tmp_path, lines, scopes)
    return "\n".join(p.message for p in refusal.value.problems)


PLAIN = ["# first", "x = self.norm(x)", "x = self.attention(x)", "", "# then", "x = self.up(x)", "return self.down(x)"]


def test_only_re_indentation_changes_the_statements_inside(tmp_path: Path) -> None:
    before, after = file(*PLAIN), scoped(tmp_path, PLAIN, ATTENTION)
    (tmp_path / "before").write_text(before)
    (tmp_path / "after").write_text(after)
    done = subprocess.run(
        ["diff", "-w", "before", "after"], cwd=tmp_path, capture_output=True, text=True, check=False
    ).stdout
    assert not [line for line in done.splitlines() if line.startswith("<")]
    assert "        # first\n        with superkernel_scope(\n" in after
    assert "            x = self.norm(x)\n            x = self.attention(x)\n\n        # then\n" in after


def test_a_result_that_is_returned_gets_a_name_so_that_the_return_stays_outside(tmp_path: Path) -> None:
    after = scoped(tmp_path, PLAIN, MLP)
    assert "            x = self.up(x)\n            down_output = self.down(x)\n        return down_output\n" in after


@pytest.mark.parametrize(
    ("line", "inside", "outside"),
    [
        (
            "x = x + self.attention(self.norm(x)).relu()",
            "attention_output = self.attention(self.norm(x))",
            "x = x + attention_output.relu()",
        ),
        ("x = self.attention(self.norm(x)).view(x.shape)", "x = self.attention(self.norm(x)).view(x.shape)", None),
        ("x += self.attention(self.norm(x))", None, "x += attention_output"),
    ],
)
def test_what_is_computed_before_and_after_is_outside(
    line: str, inside: str | None, outside: str | None, tmp_path: Path
) -> None:
    after = scoped(tmp_path, [line, "x = self.up(x)", "return self.down(x)"], ATTENTION)
    assert inside is None or inside in after
    assert outside is None or f"\n        {outside}\n" in after


def test_arguments_of_the_first_call_are_computed_outside(tmp_path: Path) -> None:
    lines = ["x = self.attention(torch.relu(x.view(x.shape)) + self.norm(x))", "return self.down(self.up(x))"]
    after = scoped(tmp_path, lines, [("a_{i}", "layers.{i}.attention", "layers.{i}.attention")])
    before, _, behind = after.partition("with superkernel_scope")
    assert "torch.relu" in before and "self.norm(x)" in before.partition("def forward")[2]
    assert "x = self.attention(" in behind and "torch.relu" not in behind


def test_several_scopes_in_one_statement_and_prefetches_between_them(tmp_path: Path) -> None:
    lines = ["x = self.up(self.attention(self.norm(x)))", "return self.down(x)"]
    single = [(f"{name}_{{i}}", f"layers.{{i}}.{name}", f"layers.{{i}}.{name}") for name in ("norm", "attention", "up")]
    after = rewrite(file(*lines), {"layers.{i}.up.weight": "layers.{i}.attention"}, tmp_path, scopes=single)
    assert after.count("with superkernel_scope") == 3
    prefetch, scope = after.index("self.up.weight"), after.index('f"up_{self.layer_idx}"')
    assert after.index('f"attention_{self.layer_idx}"') < prefetch < scope


def test_a_prefetch_inside_of_a_scope_stays_inside(tmp_path: Path) -> None:
    after = rewrite(
        file(*PLAIN), {"layers.{i}.down.weight": "layers.{i}.norm"}, tmp_path, scopes=ATTENTION, exe_mode="ge_graph"
    )
    inside = after.partition("with superkernel_scope")[2].partition("# then")[0]
    assert "            npu_prefetch(" in inside and inside.index("npu_prefetch") < inside.index("self.attention(x)")


def test_a_block_that_is_inside_as_a_whole_gets_the_scope_as_another_context(tmp_path: Path) -> None:
    lines = [
        "with contextlib.nullcontext():",
        "    x = self.norm(x)",
        "    x = self.attention(x)",
        "return self.down(self.up(x))",
    ]
    after = scoped(tmp_path, lines, ATTENTION)
    assert "        with (\n            contextlib.nullcontext(),\n            superkernel_scope(" in after
    assert "\n            x = self.norm(x)\n            x = self.attention(x)\n" in after


def test_a_scope_may_hold_whole_blocks(tmp_path: Path) -> None:
    lines = [
        "x = self.norm(x)",
        "with contextlib.nullcontext():",
        "    x = self.attention(x)",
        "return self.down(self.up(x))",
    ]
    after = scoped(tmp_path, lines, ATTENTION)
    assert "            with contextlib.nullcontext():\n                x = self.attention(x)\n" in after


def test_a_scope_over_the_loop_of_the_layers(tmp_path: Path) -> None:
    after = scoped(tmp_path, PLAIN, [("decoder_layers", "layers.0", "layers.2")])
    assert "            for layer in self.layers:\n                x = layer(x, is_prefill)\n" in after
    assert "layer_idx" not in after


def test_a_scope_that_ends_behind_the_loop(tmp_path: Path) -> None:
    after = scoped(tmp_path, PLAIN, [("all", "layers.0", "head")])
    assert "            head_output = self.head(x)\n        return head_output\n" in after


def test_layers_that_are_not_planned_are_told_apart_or_refused(tmp_path: Path) -> None:
    loaded = load_text(file(*PLAIN), tmp_path)
    scopes = make_scopes(loaded, ATTENTION)[1:]
    with pytest.raises(RefusedError, match=r"layers\.0 run the same statements, but have no such scope in the plan"):
        rewrite_source(loaded, Plan("m", "r", "ge_graph", scopes=scopes))


def test_a_class_that_knows_its_layer_is_not_told_again(tmp_path: Path) -> None:
    text = file(*PLAIN).replace("        self.norm =", "        self.layer_id = role\n        self.norm =")
    after = rewrite(text, {}, tmp_path, scopes=ATTENTION)
    assert 'f"attention_{self.layer_id}"' in after and "enumerate" not in after


@pytest.mark.parametrize(
    ("lines", "scopes", "reason"),
    [
        (
            [
                "with contextlib.nullcontext():",
                "    x = self.norm(x)",
                "    x = self.attention(x)",
                "x = self.up(x)",
                "return self.down(x)",
            ],
            [("a_{i}", "layers.{i}.attention", "layers.{i}.up")],
            "from layers.0.attention to layers.0.up, the scope would hold layers.0.norm, too",
        ),
        (
            [
                "x = self.norm(x)",
                "x = self.attention(x)",
                "if is_prefill is None:",
                "    return x",
                "x = self.up(x)",
                "return self.down(x)",
            ],
            [("a_{i}", "layers.{i}.norm", "layers.{i}.down")],
            "the scope would hold a return",
        ),
        (PLAIN, [("a_{i}", "layers.{i}.attention", "layers.{i}.norm")], "layers.0.norm runs before layers.0.attention"),
        (PLAIN, [("a", "layers.0", "layers.1")], "the scope would hold layers.2, too"),
        (
            PLAIN,
            [("a", "layers.0.up", "head")],
            "are called by different modules; one function calls layers.0 and head",
        ),
        (PLAIN, [("a", "layers.{i}.norm", "layers.{i}.attention")], "the label a is the same in several layers"),
        (
            [
                "x = self.norm(x)",
                "x = self.attention(x) if x is not None else x",
                "x = self.up(x)",
                "return self.down(x)",
            ],
            [("a_{i}", "layers.{i}.attention", "layers.{i}.up")],
            "a IfExp decides whether or how often the call runs",
        ),
    ],
)
def test_what_can_not_be_written_is_refused(
    lines: list[str], scopes: list[tuple[str, str, str]], reason: str, tmp_path: Path
) -> None:
    assert reason in refused(tmp_path, lines, scopes)


def test_refusals_of_both_levers_come_together(tmp_path: Path) -> None:
    loaded = load_text(file(*PLAIN), tmp_path)
    bad = Scope("x", (), "layers.0.up", "head")
    broken = plan_for(loaded, {"head.weight": "layers.{i}.norm"}, scopes=ATTENTION)
    with pytest.raises(RefusedError) as refusal:
        rewrite_source(loaded, Plan("m", "r", "ge_graph", broken.prefetch, (*broken.scopes, bad)))
    assert {p.key for p in refusal.value.problems} == {"recipe.prefetch.targets.head.weight", "recipe.superkernel"}


def test_another_scope_in_the_source_is_refused(tmp_path: Path) -> None:
    lines = ['with superkernel_scope(False, "other"):', "    x = self.norm(x)", "    x = self.attention(x)", *PLAIN[4:]]
    assert 'the source has a scope "other" there already' in refused(tmp_path, lines, ATTENTION)


def test_the_model_refuses_modes_without_superkernel(tmp_path: Path) -> None:
    loaded = load_text(file(*PLAIN), tmp_path)
    result = realise(loaded, Plan("m", "r", "ge_graph", scopes=make_scopes(loaded, ATTENTION)))
    python_module = sys.modules[type(result.build(True, tmp_path / "out")).__module__]
    for mode in ("eager", "npugraph_ex", "aclgraph"):
        with pytest.raises(ValueError, match=f"enable_superkernel does not work in exe_mode {mode}"):
            loaded.rebuild(python_module, enable_superkernel=True, exe_mode=mode)
        loaded.rebuild(python_module, enable_superkernel=False, exe_mode=mode)


def test_npugraph_ex_is_allowed_by_source_that_was_written_for_it(tmp_path: Path) -> None:
    after = rewrite(file(*PLAIN), {}, tmp_path, scopes=ATTENTION, exe_mode="npugraph_ex")
    assert "check_superkernel(config, allow_npugraph_ex=True)" in after


def test_a_scope_that_is_off_is_a_null_context() -> None:
    with superkernel_scope(False, "label") as nothing:
        assert nothing is None
