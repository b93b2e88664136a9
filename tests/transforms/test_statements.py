"""Statement patterns of real modeling files: where the call goes, what gets a name, and in which order."""

import textwrap
from pathlib import Path

import pytest

from models.problems import RefusedError
from tests.transforms.text_models import rewrite
from transforms.statements import Guard, Spot, Statement, name_roles_apart
from transforms.telling import Mark

FILE = """\
import torch
from torch import nn

from models.prefetch import check_prefetch, npu_prefetch

WIDE = "a long line that tells the width of this file's lines {stars}"


class Pair(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(x), x


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(8, 8)
        self.up = nn.Linear(8, 8)
        self.down = nn.Linear(8, 8)
        self.act = nn.SiLU()
        self.pair = Pair(config)
        self.bank = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

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


def edited(body: str, targets: dict[str, str], directory: Path) -> str:
    """The body of `Layer.forward` after the rewrite."""
    text = FILE.format(body=textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8), stars="*" * 40)
    targets = {f"layers.{{i}}.{w}": f"layers.{{i}}.{d}" for w, d in targets.items()}
    after = rewrite(text, targets, directory)
    forward = after[after.index("class Layer") : after.index("class Model")]
    return textwrap.dedent(forward[forward.index("def forward(self, x") :].partition("\n")[2]).strip("\n")


GUARD = "prefetch = self.enable_prefetch and x.shape[1] == 1  # decode only"
CALL = "npu_prefetch(prefetch, self.down.weight, {}, 64)"

# name: (body, dependency of down.weight, expected body)
PATTERNS = {
    "the name is reused": (
        """
        x = self.gate(x)
        return self.down(x)
        """,
        "gate",
        f"""
        {GUARD}
        x = self.gate(x)
        {CALL.format("x")}
        return self.down(x)
        """,
    ),
    "an annotated assignment": (
        """
        h: torch.Tensor = self.gate(x)
        return self.down(h)
        """,
        "gate",
        f"""
        {GUARD}
        h: torch.Tensor = self.gate(x)
        {CALL.format("h")}
        return self.down(h)
        """,
    ),
    "two targets": (
        """
        a = b = self.gate(x)
        return self.down(a + b)
        """,
        "gate",
        f"""
        {GUARD}
        gate_output = self.gate(x)
        {CALL.format("gate_output")}
        a = b = gate_output
        return self.down(a + b)
        """,
    ),
    "an element of a tuple": (
        """
        h, y = self.pair(x)
        return self.down(h + y)
        """,
        "pair",
        f"""
        {GUARD}
        h, y = self.pair(x)
        {CALL.format("h")}
        return self.down(h + y)
        """,
    ),
    "an ignored element gets a name": (
        """
        _, y = self.pair(x)
        return self.down(y)
        """,
        "pair",
        f"""
        {GUARD}
        pair_output, y = self.pair(x)
        {CALL.format("pair_output")}
        return self.down(y)
        """,
    ),
    "one of two calls of the same module": (
        """
        h = self.gate(x) if x.shape[1] < 99 else self.gate(x + 1)
        return self.down(h)
        """,
        "gate",
        f"""
        {GUARD}
        h = self.gate(x) if x.shape[1] < 99 else self.gate(x + 1)
        {CALL.format("h")}
        return self.down(h)
        """,
    ),
    "a part of one branch": (
        """
        # kept on top
        h = self.gate(x) * 2 if self.up is not None else x
        return self.down(h)
        """,
        "gate",
        f"""
        {GUARD}
        # kept on top
        if self.up is not None:
            gate_output = self.gate(x)
            {CALL.format("gate_output")}
            h = gate_output * 2
        else:
            h = x
        return self.down(h)
        """,
    ),
    "what was broken for its length and is short now": (
        """
        h = (
            self.gate(x + x + x + x + x + x + x + x + x + x + x + x + x + x + x + x + x)
            * 2
            + x
        )
        return self.down(h)
        """,
        "gate",
        f"""
        {GUARD}
        gate_output = self.gate(x + x + x + x + x + x + x + x + x + x + x + x + x + x + x + x + x)
        {CALL.format("gate_output")}
        h = gate_output * 2 + x
        return self.down(h)
        """,
    ),
    "a tuple under one name": (
        """
        both = self.pair(x)
        return self.down(both[0] + both[1])
        """,
        "pair",
        f"""
        {GUARD}
        both = self.pair(x)
        {CALL.format("both[0]")}
        return self.down(both[0] + both[1])
        """,
    ),
    "the first call of an expression": (
        """
        return self.down(self.act(self.gate(x)) * self.up(x))
        """,
        "gate",
        f"""
        {GUARD}
        gate_output = self.gate(x)
        {CALL.format("gate_output")}
        return self.down(self.act(gate_output) * self.up(x))
        """,
    ),
    "a later call keeps the order of evaluation": (
        """
        return self.down(self.act(self.gate(x)) * self.up(x))
        """,
        "up",
        f"""
        {GUARD}
        act_output = self.act(self.gate(x))
        up_output = self.up(x)
        {CALL.format("up_output")}
        return self.down(act_output * up_output)
        """,
    ),
    "a view is another tensor": (
        """
        h = self.gate(x).view(x.shape)
        return self.down(h)
        """,
        "gate",
        f"""
        {GUARD}
        gate_output = self.gate(x)
        {CALL.format("gate_output")}
        h = gate_output.view(x.shape)
        return self.down(h)
        """,
    ),
    "a chain over lines": (
        """
        h = (
            self.gate(x)  # projected
            .view(x.shape)
            .clone()
        )
        return self.down(h)
        """,
        "gate",
        f"""
        {GUARD}
        gate_output = self.gate(x)
        {CALL.format("gate_output")}
        h = (
            gate_output  # projected
            .view(x.shape)
            .clone()
        )
        return self.down(h)
        """,
    ),
    "a comment stays above its statement": (
        """
        h = self.down(x)

        # added
        return h + self.up(x)
        """,
        "up",
        None,
    ),
    "an augmented assignment": (
        """
        x += self.gate(x)
        return self.down(x)
        """,
        "gate",
        f"""
        {GUARD}
        gate_output = self.gate(x)
        {CALL.format("gate_output")}
        x += gate_output
        return self.down(x)
        """,
    ),
    "the input has a name": (
        """
        h = x * 2
        h = self.gate(h)
        return self.down(h)
        """,
        "gate:input",
        f"""
        {GUARD}
        h = x * 2
        {CALL.format("h")}
        h = self.gate(h)
        return self.down(h)
        """,
    ),
    "the input is an expression": (
        """
        h = self.gate(x * 2)
        return self.down(h)
        """,
        "gate:input",
        f"""
        {GUARD}
        gate_input = x * 2
        {CALL.format("gate_input")}
        h = self.gate(gate_input)
        return self.down(h)
        """,
    ),
    "an input after another call": (
        """
        return self.down(self.act(self.gate(x)) * self.up(x))
        """,
        "up:input",
        f"""
        {GUARD}
        act_output = self.act(self.gate(x))
        {CALL.format("x")}
        return self.down(act_output * self.up(x))
        """,
    ),
    "a name that is taken": (
        """
        prefetch = 1
        gate_output = x * prefetch
        return self.down(self.gate(gate_output) + gate_output)
        """,
        "gate",
        f"""
        {GUARD.replace("prefetch =", "prefetch_now =", 1)}
        prefetch = 1
        gate_output = x * prefetch
        gate_output_2 = self.gate(gate_output)
        {CALL.format("gate_output_2").replace("(prefetch,", "(prefetch_now,")}
        return self.down(gate_output_2 + gate_output)
        """,
    ),
    "non-ASCII text before the call": (
        """
        é = "ü"; h = x  # noqa: E702
        ä = self.gate(h if len("ß") else x)
        return self.down(ä)
        """,
        "gate",
        f"""
        {GUARD}
        é = "ü"; h = x  # noqa: E702
        ä = self.gate(h if len("ß") else x)
        {CALL.format("ä")}
        return self.down(ä)
        """,
    ),
    "inside a block": (
        """
        if x is not None:
            with torch.no_grad():
                h = self.gate(x)
        return self.down(h)
        """,
        "gate",
        f"""
        {GUARD}
        if x is not None:
            with torch.no_grad():
                h = self.gate(x)
                {CALL.format("h")}
        return self.down(h)
        """,
    ),
}


@pytest.mark.parametrize("name", [name for name, pattern in PATTERNS.items() if pattern[2]])
def test_the_call_goes_right_behind_the_tensor(name: str, tmp_path: Path) -> None:
    body, dependency, expected = PATTERNS[name]
    assert edited(body, {"down.weight": dependency}, tmp_path) == textwrap.dedent(expected or "").strip("\n")


def test_a_comment_stays_above_its_statement(tmp_path: Path) -> None:
    body = PATTERNS["a comment stays above its statement"][0]
    after = edited(body, {"gate.weight": "up"}, tmp_path)
    call = "npu_prefetch(prefetch, self.gate.weight, up_output, 64)"
    assert after.endswith(f"\n\n# added\nup_output = self.up(x)\n{call}\nreturn h + up_output")


def test_several_calls_on_one_line_compose(tmp_path: Path) -> None:
    targets = {"down.weight": "gate", "bank.0.weight": "up", "bank.1.weight": "down:input"}
    after = edited("return self.down(self.act(self.gate(x)) * self.up(x))", targets, tmp_path)
    assert after == textwrap.dedent(
        f"""\
        {GUARD}
        gate_output = self.gate(x)
        {CALL.format("gate_output")}
        act_output = self.act(gate_output)
        up_output = self.up(x)
        npu_prefetch(prefetch, self.bank[0].weight, up_output, 64)
        down_input = act_output * up_output
        npu_prefetch(prefetch, self.bank[1].weight, down_input, 64)
        return self.down(down_input)"""
    )


REFUSED = {
    "return self.down(self.gate(x) if x is not None else x)": "decides whether or how often",
    "h = x is None or self.gate(x)\nreturn self.down(h)": "decides whether or how often",
    "h = (lambda: self.gate(x))()\nreturn self.down(h)": "comprehension, lambda or inner function",
    "h = [self.gate(y) for y in [x]][0]\nreturn self.down(h)": "comprehension, lambda or inner function",
    "if self.gate(x) is not None:\n    x = x + 1\nreturn self.down(x)": "header of a compound statement",
    "y = 1; x = self.gate(x)\nreturn self.down(x)": "shares its line",
    "x = self.down(y := self.gate(x))\nreturn x + y": "walrus",
    "assert self.gate(x) is not None\nreturn self.down(x)": "statement of kind assert",
    "x = self.gate(x)\nx = self.gate(x)\nreturn self.down(x)": "called 2 times",
    "return self.down(torch.nn.functional.linear(x, self.gate.weight))": "never called",
}


@pytest.mark.parametrize("body", REFUSED)
def test_what_can_not_be_written_is_refused_with_the_reason(body: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedError) as refused:
        edited(body, {"down.weight": "gate"}, tmp_path)
    assert REFUSED[body] in str(refused.value)


def test_a_loop_over_a_list_is_left_alone(tmp_path: Path) -> None:
    """The dependency is made by a loop: its call goes into the module that the loop calls."""
    body = """
    for i in range(2):
        x = self.bank[i](x)
    return self.down(x)
    """
    with pytest.raises(RefusedError, match="called in a loop"):  # nn.Linear's own file is not ours to rewrite
        edited(body, {"down.weight": "bank.1"}, tmp_path)


def test_roles_of_one_name_in_parents_of_two_classes_have_marks_of_their_own() -> None:
    spot = Spot("entry", "Bias.forward", None, 0, "layers.0.attn.bias", "output", 0, Guard("entry", ""))

    def statement(parent: str, owner: str, size: int) -> Statement:
        mark = Mark(parent, "bias", "prefetch_proj")
        owners = frozenset({owner})
        return Statement(spot, "self.proj", size, 0, ("self.prefetch_proj",), None, mark, owners, (), ())

    sliding, full = name_roles_apart(
        [statement("SlidingAttention", "layers.0.attn.bias", 1), statement("FullAttention", "layers.1.attn.bias", 2)]
    )
    assert sliding.conditions == ("self.prefetch_proj_bias_of_sliding_attention",)
    assert full.conditions == ("self.prefetch_proj_bias_of_full_attention",)
    assert full.mark is not None and full.mark.name == "prefetch_proj_bias_of_full_attention"
