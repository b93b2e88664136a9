"""The stand-in for the operator, the switch and the check of the configuration."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from models.prefetch import check_prefetch, npu_prefetch, observe
from transforms.helpers import text_of

WEIGHT = torch.nn.Parameter(torch.ones(4), requires_grad=False)


def test_observers_see_the_very_tensors_in_order() -> None:
    dependency = torch.ones(2)
    with observe() as outer:
        npu_prefetch(True, WEIGHT, dependency, 16)
        with observe() as inner:
            npu_prefetch(True, WEIGHT, dependency, 8, 4)
            npu_prefetch(False, WEIGHT, dependency, 99)
    npu_prefetch(True, WEIGHT, dependency, 1)
    assert [(c.max_size, c.offset) for c in outer] == [(16, 0), (8, 4)]
    assert len(inner) == 1 and inner[0].weight is WEIGHT and inner[0].dependency is dependency


def test_a_compiler_keeps_the_call_although_it_returns_nothing() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        npu_prefetch(True, WEIGHT, x, 16)
        return x + 1

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    with observe() as calls:
        compiled(torch.ones(2))
    assert len(calls) == 1  # executed once; what the compiler traced does not count


def test_it_runs_on_meta() -> None:
    with observe() as calls:
        npu_prefetch(True, WEIGHT.to("meta"), torch.ones(1, device="meta"), 16)
    assert calls == []


@pytest.mark.parametrize("check", ["ours", "ge_graph", "npugraph_ex"])
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, None),
        ({"enable_prefetch": False, "exe_mode": "aclgraph"}, None),
        ({"enable_prefetch": True}, None),
        ({"enable_prefetch": True, "exe_mode": "eager"}, None),
        ({"enable_prefetch": True, "exe_mode": "ge_graph", "enable_multi_stream": 1}, None),
        (
            {"enable_prefetch": True, "exe_mode": "npugraph_ex", "enable_multi_stream": 2},
            "needs source that was transformed for it",
        ),
        ({"enable_prefetch": True, "exe_mode": "ge_graph"}, "exe_mode ge_graph needs enable_multi_stream"),
        ({"enable_prefetch": True, "exe_mode": "npugraph_ex", "enable_multi_stream": 0}, "needs enable_multi_stream"),
        (
            {"enable_prefetch": True, "exe_mode": "aclgraph", "enable_multi_stream": 1},
            "does not work in exe_mode aclgraph",
        ),
    ],
)
def test_modes_without_prefetch_are_refused(check: str, config: dict[str, Any], message: str | None) -> None:
    """The copy that is written into other trees must agree with ours, word by word."""
    function = check_prefetch
    if check != "ours":
        namespace: dict[str, Any] = {"torch": torch}
        exec(text_of("check_prefetch", check), namespace)
        function = namespace["check_prefetch"]
    if message is None:
        function(SimpleNamespace(**config))
    else:
        with pytest.raises(ValueError, match=message):
            function(SimpleNamespace(**config))
