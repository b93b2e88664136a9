"""Weights outside the instance, and instances that must not prefetch: links, type tests, role marks, refusals."""

from pathlib import Path

import pytest

from models.problems import RefusedError
from tests.transforms.text_models import check, load_text, plan_for, rewrite
from transforms.plan import Plan
from transforms.prefetch_source import prefetch_source

HEAD = """\
import torch
from torch import nn

from models.prefetch import check_prefetch, npu_prefetch

WIDE = "a long line that tells the width of this file's lines, so that nothing below is broken without need"


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(8, 8)
        self.down = nn.Linear(8, 8)

    def forward(self, x):
        h = self.gate(x)
        return self.down(torch.relu(h))


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.q = nn.Linear(8, 8)
        self.o = nn.Linear(8, 8)

    def forward(self, x):
        x = self.o(self.q(x))
        return x{after_o}


"""
LAYER = """\
class Layer(nn.Module):
    def __init__(self, config, index):
        super().__init__()
        self.attention = nn.ModuleList([Attention(config) for _ in range(2)])
        self.mlps = nn.ModuleList([MLP(config) for _ in range(2)])

    def forward(self, x):
        x = self.attention[0](x)
        x = self.mlps[0](x)
        x = self.attention[1](x)
        x = x + self.mlps[1](x)
        return x


"""
MODEL = """\
class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([Layer(config, i) for i in range(3)])
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
"""
FILE = HEAD.format(after_o="") + LAYER + MODEL


def test_a_tensor_that_the_caller_returns_lets_the_call_move_up_to_the_weight(tmp_path: Path) -> None:
    after = rewrite(FILE, {"layers.{i}.mlps.0.gate.weight": "layers.{i}.attention.0.o"}, tmp_path)
    assert (
        "        x = self.attention[0](x)\n        npu_prefetch(prefetch, self.mlps[0].gate.weight, x, 64)\n" in after
    )
    assert "linked" not in after


@pytest.mark.parametrize("change", [" * 2", ".mul_(1.0)"], ids=["new tensor", "written in place"])
def test_a_tensor_that_changes_on_the_way_stops_the_climb(change: str, tmp_path: Path) -> None:
    """An in-place collective keeps the object: only its version tells that it has another producer."""
    text = HEAD.format(after_o=change) + LAYER + MODEL
    after = rewrite(text, {"layers.{i}.mlps.0.gate.weight": "layers.{i}.attention.0.o"}, tmp_path)
    assert (
        "        x = self.o(self.q(x))\n"
        "        if self.linked_mlps_0 is not None:\n"
        "            npu_prefetch(prefetch, self.linked_mlps_0.gate.weight, x, 64)\n" in after
    )
    assert "        self.linked_mlps_0 = None\n" in after
    assert (
        "        self.mlps = nn.ModuleList([MLP(config) for _ in range(2)])\n"
        '        object.__setattr__(self.attention[0], "linked_mlps_0", self.mlps[0])  # a link, not a submodule\n'
        in after
    )


def test_only_one_role_of_a_class_is_linked(tmp_path: Path) -> None:
    after = rewrite(FILE, {"layers.{i}.attention.1.q.weight": "layers.{i}.mlps.0.gate"}, tmp_path)
    assert 'object.__setattr__(self.mlps[0], "linked_attention_1", self.attention[1])' in after
    assert "object.__setattr__(self.mlps[1]" not in after


def test_a_role_is_marked_by_the_parent(tmp_path: Path) -> None:
    after = rewrite(FILE, {"layers.{i}.mlps.1.down.weight": "layers.{i}.mlps.1.gate"}, tmp_path)
    assert "        self.prefetch_down = False\n" in after
    assert "        self.mlps[1].prefetch_down = True\n" in after
    assert "        if self.prefetch_down:\n" in after


def test_the_next_layer_is_linked_and_the_last_has_none(tmp_path: Path) -> None:
    after = rewrite(FILE, {"layers.{i+1}.attention.0.q.weight": "layers.{i}.mlps.1.down"}, tmp_path)
    assert (
        "        for layer, next_layer in zip(self.layers[:-1], self.layers[1:], strict=True):\n"
        "            # a link, not a submodule\n"
        '            object.__setattr__(layer, "next_attention_0_q", next_layer.attention[0].q)\n' in after
    )


def test_several_links_to_the_next_layer_have_one_comment(tmp_path: Path) -> None:
    both = {"layers.{i+1}.attention.0.q.weight": "layers.{i}.mlps.1.down"}
    both["layers.{i+1}.mlps.0.gate.weight"] = "layers.{i}.mlps.1.down"
    after = rewrite(FILE, both, tmp_path)
    assert (
        "            # links, not submodules\n"
        '            object.__setattr__(layer, "next_attention_0_q", next_layer.attention[0].q)\n'
        '            object.__setattr__(layer, "next_mlps_0_gate", next_layer.mlps[0].gate)\n' in after
    )
    assert "a link, not a submodule" not in after


def test_a_list_of_layers_may_be_filled_one_by_one(tmp_path: Path) -> None:
    text = FILE.replace(
        "        self.layers = nn.ModuleList([Layer(config, i) for i in range(3)])\n",
        "        self.layers = nn.ModuleList()\n"
        "        for i in range(3):\n"
        "            self.layers.append(Layer(config, i))\n",
    )
    after = rewrite(text, {"layers.{i+1}.attention.0.q.weight": "layers.{i}.mlps.1.down"}, tmp_path)
    assert "            self.layers.append(Layer(config, i))\n        for layer, next_layer in zip(" in after


def test_links_into_the_next_layer_make_no_chain(tmp_path: Path) -> None:
    """A chain through all layers would be followed recursively by compilers and deepcopy."""
    entries = {
        "layers.{i+1}.attention.0.q.weight": "layers.{i}.mlps.1.down",
        "layers.{i+1}.attention.1.q.weight": "layers.{i}.mlps.1.down",
    }
    after = rewrite(FILE, entries, tmp_path)
    targets = [line.rpartition(", ")[2] for line in after.splitlines() if "object.__setattr__" in line]
    assert targets == ["next_layer.attention[0].q)", "next_layer.attention[1].q)"]
    assert after.count("for layer, next_layer in zip(") == 1


def test_a_whole_layer_as_dependency_is_issued_inside_it(tmp_path: Path) -> None:
    """The loop over layers is left alone."""
    after = rewrite(FILE, {"layers.{i+1}.attention.0.q.weight": "layers.{i}"}, tmp_path)
    assert (
        "        if self.next_attention_0_q is not None:\n"
        "            npu_prefetch(prefetch, self.next_attention_0_q.weight, x, 64)\n"
        "        return x\n" in after
    )


def test_a_layer_that_returns_a_sum_of_tuples_names_its_first_element(tmp_path: Path) -> None:
    text = FILE.replace(
        "        return x\n\n\nclass Model", "        outputs = (None,)\n        return (x,) + outputs\n\n\nclass Model"
    ).replace("            x = layer(x)\n", "            x = layer(x)[0]\n")
    after = rewrite(text, {"layers.{i+1}.attention.0.q.weight": "layers.{i}"}, tmp_path)
    assert (
        "            npu_prefetch(prefetch, self.next_attention_0_q.weight, x, 64)\n        return (x,) + outputs\n"
        in after
    )


def test_the_input_of_a_layer_is_used_at_its_entry(tmp_path: Path) -> None:
    after = rewrite(FILE, {"layers.{i}.mlps.0.gate.weight": "layers.{i}:input"}, tmp_path)
    assert (
        "        prefetch = self.enable_prefetch and x.shape[1] == 1  # decode only\n"
        "        npu_prefetch(prefetch, self.mlps[0].gate.weight, x, 64)\n"
        "        x = self.attention[0](x)\n" in after
    )


def test_the_target_may_be_a_direct_child_of_the_common_parent(tmp_path: Path) -> None:
    text = FILE.replace("self.mlps = nn", "self.last = nn.Linear(8, 8)\n        self.mlps = nn").replace(
        "        return x\n\n\nclass Model", "        return self.last(x)\n\n\nclass Model"
    )
    after = rewrite(text, {"layers.{i}.last.weight": "layers.{i}.mlps.1.gate"}, tmp_path)
    assert 'object.__setattr__(self.mlps[1], "linked_last", self.last)' in after
    assert "self.linked_last.weight" in after


def test_layers_of_different_types_are_told_apart_by_type(tmp_path: Path) -> None:
    text = FILE.replace("class Layer(", "class Dense(MLP):\n    pass\n\n\nclass Layer(").replace(
        "self.mlps = nn", "self.mlp = Dense(config) if index == 0 else MLP(config)\n        self.mlps = nn"
    )
    text = text.replace("x = self.mlps[0](x)", "x = self.mlps[0](self.mlp(x))")
    loaded = load_text(text, tmp_path)
    plan = plan_for(loaded, {"layers.{i}.mlp.gate.weight": "layers.{i}.attention.0.o"})
    dense_only = Plan("test", "test", "eager", tuple(p for p in plan.prefetch if p.layer == 0))
    result = prefetch_source(loaded, dense_only)
    check(loaded, dense_only, result, tmp_path)
    assert "        if isinstance(self.mlp, Dense):\n" in result.after


def test_a_part_that_is_set_on_some_paths_only_is_asked_for(tmp_path: Path) -> None:
    """Arguments are evaluated with the switch off, too: a role without the part must still run."""
    text = FILE.replace(
        "self.mlps = nn",
        'if getattr(config, "role", "all") == "all":\n            self.extra = MLP(config)\n        self.mlps = nn',
    ).replace(
        "        x = x + self.mlps[1](x)",
        '        if hasattr(self, "extra"):\n            x = self.extra(x)\n        x = x + self.mlps[1](x)',
    )
    targets = {
        "layers.{i}.extra.gate.weight": "layers.{i}.attention.1.o",
        "layers.{i}.extra.down.weight": "layers.{i}.mlps.0.gate",
    }
    after = rewrite(text, targets, tmp_path)
    assert (
        '        if hasattr(self, "extra"):\n            npu_prefetch(prefetch, self.extra.gate.weight, x, 64)\n'
        in after
    )
    assert (
        '        if hasattr(self, "extra"):\n            object.__setattr__(self.mlps[0], "linked_extra", self.extra)'
        in after
    )
    without = load_text(after.replace('"role", "all") ==', '"role", "all") !='), tmp_path)
    without.run()


def entries(text: str, targets: dict[str, str], directory: Path, keep: object = lambda p: True) -> RefusedError:
    loaded = load_text(text, directory)
    plan = plan_for(loaded, targets)
    plan = Plan("test", "test", "eager", tuple(p for p in plan.prefetch if keep(p)))  # type: ignore[operator]
    with pytest.raises(RefusedError) as refused:
        prefetch_source(loaded, plan)
    return refused.value


def test_a_subset_of_equal_layers_is_refused(tmp_path: Path) -> None:
    error = entries(
        FILE, {"layers.{i}.mlps.0.gate.weight": "layers.{i}.attention.0.o"}, tmp_path, lambda p: p.layer == 1
    )
    assert "layers.0, layers.2 run the same statement, but are not in the plan with the same size" in str(error)


def test_different_sizes_for_one_statement_are_refused(tmp_path: Path) -> None:
    loaded = load_text(FILE, tmp_path)
    plan = plan_for(loaded, {"layers.{i}.mlps.0.gate.weight": "layers.{i}.attention.0.o"})
    first, *rest = plan.prefetch
    mixed = Plan("test", "test", "eager", (type(first)(**{**vars(first), "max_size": 32}), *rest))
    with pytest.raises(RefusedError, match="not in the plan with the same size"):
        prefetch_source(loaded, mixed)


def test_the_layer_after_the_next_is_refused(tmp_path: Path) -> None:
    error = entries(FILE, {"layers.{i+2}.attention.0.q.weight": "layers.{i}.mlps.1.down"}, tmp_path)
    assert "not in the same or the next layer" in str(error)


def test_a_weight_outside_the_layers_is_refused_from_inside_a_layer(tmp_path: Path) -> None:
    error = entries(FILE, {"head.weight": "layers.{i}.mlps.1.gate"}, tmp_path, lambda p: p.layer == 2)
    assert "head.weight is outside the layer" in str(error)


def test_every_reason_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    targets = {
        "layers.{i}.mlps.0.gate.weight": "layers.{i}.attention.0.o",  # fine
        "layers.{i+2}.attention.0.q.weight": "layers.{i}.mlps.1.down",
        "layers.{i}.mlps.1.gate.weight": "layers.{i}.attention",
    }
    before = set(tmp_path.iterdir())
    error = entries(FILE, targets, tmp_path)
    reasons = sorted(problem.message for problem in error.problems)
    assert len(reasons) == 2
    assert "(layer 0 and 2 more): layers.0.attention is never called" in reasons[1]
    assert all(problem.key and problem.key.startswith("recipe.prefetch.targets.") for problem in error.problems)
    assert {p.suffix for p in set(tmp_path.iterdir()) - before} <= {".py", ""}


def test_the_call_stays_inside_where_moving_it_up_would_change_the_order(tmp_path: Path) -> None:
    """Both hang on attention 0, but the second is planned after the first: it can't be issued before it."""
    text = FILE.replace("        x = self.attention[0](x)\n", "        x = self.norm(self.attention[0](x))\n").replace(
        "self.mlps = nn", "self.norm = nn.Identity()\n        self.mlps = nn"
    )
    targets = {
        "layers.{i}.mlps.0.gate.weight": "layers.{i}.attention.0.o",
        "layers.{i}.attention.1.q.weight": "layers.{i}.attention.0",
    }
    after = rewrite(text, targets, tmp_path)
    assert after.index("self.mlps[0].gate.weight") < after.index("self.attention[1].q.weight")
    inner = {
        "layers.{i}.mlps.0.gate.weight": "layers.{i}.mlps.0.gate:input",
        "layers.{i}.mlps.0.down.weight": "layers.{i}.attention.0",
    }
    after = rewrite(FILE, inner, tmp_path)
    assert "npu_prefetch(prefetch, self.mlps[0].down.weight, x, 64)" in after


def test_a_plan_in_an_impossible_order_is_refused(tmp_path: Path) -> None:
    loaded = load_text(FILE, tmp_path)
    targets = {
        "layers.{i}.mlps.0.gate.weight": "layers.{i}.attention.0.o",
        "layers.{i}.mlps.1.gate.weight": "layers.{i}.attention.1.o",
    }
    plan = plan_for(loaded, targets)
    backwards = Plan("test", "test", "eager", tuple(reversed(plan.prefetch)))
    with pytest.raises(RefusedError, match="is reached before"):
        prefetch_source(loaded, backwards)


def test_a_dependency_in_the_model_itself_reaches_into_its_layers(tmp_path: Path) -> None:
    """Also one whose tensor the whole model returns: there is no caller above it."""
    text = FILE.replace(
        "        for layer in self.layers:", "        x = self.embed(x)\n        for layer in self.layers:"
    ).replace("        self.head =", "        self.embed = nn.Linear(8, 8)\n        self.head =")
    loaded = load_text(text, tmp_path)
    plan = plan_for(loaded, {"layers.0.attention.0.q.weight": "embed"})
    plan = Plan("test", "test", "eager", plan.prefetch[:1])
    result = prefetch_source(loaded, plan)
    check(loaded, plan, result, tmp_path)
    assert "npu_prefetch(prefetch, self.layers[0].attention[0].q.weight, x, 64)" in result.after
    late = plan_for(loaded, {"embed.weight": "head"})
    prefetch_source(loaded, Plan("test", "test", "eager", late.prefetch[:1]))


ATTENTION = """\
class Attention(nn.Module):
    def __init__(self, config, index):
        super().__init__()
        self.kind = "full" if index % 2 else "sliding"
        self.width = 8 + index
        self.q = nn.Linear(8, 8)
        self.k = nn.Linear(8, 8)
        self.sink = nn.Linear(8, 8) if index == 1 else None

    def forward(self, x):
        x = self.q(x) + self.k(x)
        return x if self.sink is None else self.sink(x)


class Other(Attention):
    pass


class Layer(nn.Module):
    def __init__(self, config, index):
        super().__init__()
        self.attention = Attention(config, index)
        self.mlp = MLP(config)

    def forward(self, x):
        x = self.attention(x)
        x = self.mlp(x)
        return x


"""
KINDS = HEAD.format(after_o="").replace("class Attention", "class Unused") + ATTENTION + MODEL


def test_weights_of_one_part_of_the_next_layer_share_a_link(tmp_path: Path) -> None:
    targets = {f"layers.{{i+1}}.attention.{name}.weight": "layers.{i}.mlp" for name in "qk"}
    after = rewrite(KINDS, targets, tmp_path)
    assert (
        "        x = self.mlp(x)\n"
        "        if self.next_attention is not None:\n"
        "            npu_prefetch(prefetch, self.next_attention.q.weight, x, 64)\n"
        "            npu_prefetch(prefetch, self.next_attention.k.weight, x, 64)\n" in after
    )
    assert after.count("object.__setattr__") == 1


def test_a_part_that_links_start_from_is_not_linked_itself(tmp_path: Path) -> None:
    """Its own link leads into the layer after the next one: that would be a chain."""
    targets = {f"layers.{{i+1}}.attention.{name}.weight": "layers.{i}.attention.q" for name in "qk"}
    after = rewrite(KINDS, targets, tmp_path)
    assert "next_layer.attention.q)" in after and "next_layer.attention.k)" in after


def planned(text: str, targets: dict[str, str], directory: Path, sizes: dict[str, int]) -> str:
    """The rewritten file of a plan in which the weights that end in a name have a size of their own."""
    loaded = load_text(text, directory)
    plan = plan_for(loaded, targets)
    entries = [
        type(p)(**{**vars(p), "max_size": next((s for name, s in sizes.items() if name in p.weight), 64)})
        for p in plan.prefetch
    ]
    plan = Plan("test", "test", "eager", tuple(p for p in entries if p.max_size))
    result = prefetch_source(loaded, plan)
    check(loaded, plan, result, directory)
    return result.after


def test_layers_of_one_class_are_told_apart_by_what_kind_they_say_they_are(tmp_path: Path) -> None:
    """Never by a number: that of the tiny model is not that of the full one."""
    targets = {"layers.{i+1}.attention.q.weight": "layers.{i}.mlp"}
    after = planned(KINDS, targets, tmp_path, {"layers.1.": 32})
    assert '        if self.next_attention is not None and self.next_attention.kind == "full":\n' in after
    assert '        if self.next_attention is not None and self.next_attention.kind == "sliding":\n' in after


def test_nothing_but_a_number_tells_nothing(tmp_path: Path) -> None:
    text = KINDS.replace('        self.kind = "full" if index % 2 else "sliding"\n', "").replace(
        "self.sink = nn.Linear(8, 8) if index == 1 else None", "self.sink = None"
    )
    with pytest.raises(RefusedError, match="not in the plan with the same size"):
        planned(text, {"layers.{i+1}.attention.q.weight": "layers.{i}.mlp"}, tmp_path, {"layers.1.": 32})


def test_a_part_that_may_be_none_is_asked_for(tmp_path: Path) -> None:
    """Arguments are evaluated with the switch off, too."""
    after = rewrite(KINDS, {"layers.{i}.attention.sink.weight": "layers.{i}.attention.q"}, tmp_path)
    assert "        if self.sink is not None:\n            npu_prefetch(prefetch, self.sink.weight" in after


def test_layers_of_different_classes_are_told_apart_when_links_are_set(tmp_path: Path) -> None:
    text = KINDS.replace(
        "class Model(",
        "class Plain(nn.Module):\n"
        "    def __init__(self, config, index):\n"
        "        super().__init__()\n"
        "        self.mlp = MLP(config)\n\n"
        "    def forward(self, x):\n"
        "        x = self.mlp(x)\n"
        "        return x\n\n\n"
        "class Model(",
    ).replace("Layer(config, i) for i", "(Plain if i == 1 else Layer)(config, i) for i")
    after = rewrite(text, {"layers.{i+1}.attention.q.weight": "layers.{i}.mlp"}, tmp_path)
    assert (
        "            if isinstance(next_layer, Layer):\n"
        "                # a link, not a submodule\n"
        '                object.__setattr__(layer, "next_attention_q", next_layer.attention.q)' in after
    )


def test_one_role_can_tell_the_phase_itself_and_another_is_told_by_its_caller(tmp_path: Path) -> None:
    """A shared expert gets flat tokens, which do not tell; the dense MLP of the same class gets sequences."""
    text = KINDS.replace(
        "class Layer(",
        "class MoE(nn.Module):\n"
        "    def __init__(self, config):\n"
        "        super().__init__()\n"
        "        self.shared = MLP(config)\n\n"
        "    def forward(self, x):\n"
        "        flat = x.view(-1, 8)\n"
        "        return self.shared(flat).view(x.shape)\n\n\n"
        "class Layer(",
    ).replace("self.mlp = MLP(config)", "self.mlp = MoE(config) if index else MLP(config)")
    targets = {
        "layers.{i}.mlp.down.weight": "layers.{i}.mlp.gate",
        "layers.{i}.mlp.shared.down.weight": "layers.{i}.mlp.shared.gate",
    }
    after = planned(text, targets, tmp_path, {"shared": 32})
    assert "    def forward(self, x, prefetch=False):\n        h = self.gate(x)\n" in after
    assert "        prefetch_now = self.enable_prefetch and h.shape[1] == 1  # decode only\n" in after
    assert "return self.shared(flat, prefetch=prefetch).view(x.shape)" in after
    assert "            self.mlp.prefetch_down_mlp = True\n" in after


MAYBE = KINDS.replace("self.k = nn.Linear(8, 8)", "self.k = nn.Linear(8, 8) if config is not None else None")


def test_what_the_same_block_calls_anyway_is_not_asked_for(tmp_path: Path) -> None:
    text = MAYBE.replace(
        "        x = self.q(x) + self.k(x)\n",
        "        if self.k is None:\n            x = self.q(x)\n"
        "        else:\n            x = self.q(x)\n            x = self.k(x)\n",
    )
    after = rewrite(text, {"layers.{i}.attention.k.weight": "layers.{i}.attention.q"}, tmp_path)
    assert "            x = self.q(x)\n            npu_prefetch(prefetch, self.k.weight, x, 64)\n" in after


@pytest.mark.parametrize(
    "body",
    [
        "        x = self.q(x)\n        if self.k is not None:\n            x = self.k(x)\n",
        "        x = self.q(x)\n        x = self.k(x) if self.k is not None else x\n",
        "        x = self.q(x)\n        if self.k is None:\n            return x\n        x = self.k(x)\n",
    ],
    ids=["another block", "a conditional expression", "behind a return"],
)
def test_what_may_not_be_called_is_asked_for(body: str, tmp_path: Path) -> None:
    text = MAYBE.replace("        x = self.q(x) + self.k(x)\n", body)
    after = rewrite(text, {"layers.{i}.attention.k.weight": "layers.{i}.attention.q"}, tmp_path)
    assert "        if self.k is not None:\n            npu_prefetch(prefetch, self.k.weight, x, 64)\n" in after
