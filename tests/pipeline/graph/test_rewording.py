"""What the front end says, with the recipe key that caused it."""

import pytest

from pipeline.graph.rewording import reword
from tests.pipeline.graph.toy_graphs import PLAN

SOURCE = """class Layer:
    def forward(self, x):
        y = self.o_proj(x)
        npu_prefetch(self.enable_prefetch, self.gate_up.weight, y, 0)
        return self.down(y)
"""
FRAME = 'File "/tmp/x/transformed/models/toy.py", line 4, in forward'


def error(said, frame=FRAME):
    return {
        "type": "TorchRuntimeError",
        "message": f"Dynamo failed to run FX node:\n{said}\n\nfrom user code:\n  {frame}",
        "trace": "",
    }


@pytest.mark.parametrize(
    ("said", "key", "words"),
    [
        ("RuntimeError: The max_size should be greater than zero, but got 0.", "max_size", "a prefetch of 0 bytes"),
        ("RuntimeError: The offset should be nonnegative, but got -1.", "offset", "a prefetch from byte -1"),
        (
            "NotImplementedError: ... ge converter is not implement when dependency is None.",
            "dependency",
            "waits for nothing",
        ),
    ],
)
def test_a_bad_prefetch_names_the_key_of_the_target_in_that_line(said, key, words):
    found = reword(error(said), PLAN, SOURCE)
    assert found.keys == (f"recipe.prefetch.targets.gate_up.{key}",)
    assert words in found.text
    assert (
        "line 4 of the rewritten source (`npu_prefetch(self.enable_prefetch, self.gate_up.weight, y, 0)`)" in found.text
    )
    assert said in found.text  # the original stays readable


@pytest.mark.parametrize(
    "said",
    [
        "RuntimeError: After you call x, there is no paired call to the torch.ops.air.scope_exit operator.",
        "RuntimeError: When you call x, you must first call the torch.ops.air.scope_enter operator",
        "RuntimeError: No matching torch.npu.super_kernel_scope_begin found for x",
    ],
)
def test_unpaired_scopes_are_the_superkernels(said):
    assert reword(error(said), PLAN, SOURCE).keys == ("recipe.superkernel",)


def test_what_has_no_key_is_quoted_without_one():
    found = reword(error("RuntimeError: something new", frame=""), PLAN, SOURCE)
    assert found.keys == ()
    assert "something new" in found.text


def test_a_wrap_has_no_source_to_point_at():
    found = reword(error("RuntimeError: The max_size should be greater than zero, but got 0."), PLAN, None)
    assert "rewritten source" not in found.text
    assert "a prefetch of 0 bytes" in found.text


def test_modules_that_link_to_each_other_without_end_are_told():
    said = "RecursionError: maximum recursion depth exceeded while calling a Python object"
    found = reword({"type": "InternalTorchDynamoError", "message": said, "trace": ""}, PLAN, SOURCE)
    assert "a chain of modules that link to each other" in found.text


def test_a_graph_break_is_told_by_its_first_line():
    message = """Call to skipped function
  Explanation: it is skipped

 For more details about this graph break, please visit: https://example.org/gb0156.html
"""
    found = reword({"type": "Unsupported", "message": message, "trace": FRAME}, PLAN, SOURCE)
    assert "a decode step must be one graph" in found.text
    assert "It said: Unsupported: Call to skipped function" in found.text


SCOPED = """class Layer:
    def forward(self, x):
        with ops.limit_cores(8), superkernel_scope(on, f"moe_{self.layer_idx}", "stream-fusion=1"):
            y = self.mlp(x)
        with superkernel_scope(on, "head"):
            return self.head(y)


class MLP:
    def forward(self, x):
        npu_prefetch(on, self.gate_up.weight, x, 1024)
        return self.up(x)
"""
KEYS = {"moe_0": "recipe.superkernel.scopes.moe", "moe_1": "recipe.superkernel.scopes.moe", "head": "recipe.head"}


def graph_break(*lines):
    frames = "\n".join(FRAME.replace("line 4", f"line {line}") for line in lines)
    return {"type": "Unsupported", "message": f"graph break\n\nfrom user code:\n{frames}", "trace": ""}


@pytest.mark.parametrize(
    ("lines", "keys"),
    [
        ((4, 12), ("recipe.superkernel.scopes.moe",)),  # in what is called inside
        ((4,), ("recipe.superkernel.scopes.moe",)),
        ((6,), ("recipe.head",)),
        ((12,), ()),
        ((4, 11), ("recipe.prefetch.targets.gate_up", "recipe.superkernel.scopes.moe")),
    ],
)
def test_a_graph_break_inside_a_scope_names_the_scopes_key(lines, keys):
    found = reword(graph_break(*lines), PLAN, SCOPED, KEYS)
    assert found.keys == keys
    assert f"line {lines[-1]} of the rewritten source" in found.text
    assert all(key in found.text for key in keys)
    assert ("inside a scope of" in found.text) == any("prefetch" not in key for key in keys)


def test_source_that_is_no_python_has_no_scopes():
    said = error("SyntaxError: invalid syntax")
    assert reword(said, PLAN, "with superkernel_scope(", KEYS).keys == ()
