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
