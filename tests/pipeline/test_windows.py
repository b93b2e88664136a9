"""Copies, windows and bytes in flight of a plan."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.legality import Placement
from pipeline.windows import copies_of, in_flight, placements_of, windows
from tests.pipeline.toy import model_and_step
from transforms.plan import Plan, Prefetch

_, STEP = model_and_step()
L0, L1 = "model.layers.0", "model.layers.1"


def plan(*entries: tuple[str, str, str, int, int]) -> Plan:
    return Plan("toy", "t", "ge_graph", tuple(Prefetch("t", w, d, p, 0, 10**6, n, o) for w, d, p, n, o in entries))  # type: ignore[arg-type]


PLAN = plan(
    (f"{L0}.mlp.gate_up.weight", f"{L0}.self_attn.o_proj", "output", 100, 0),
    (f"{L0}.mlp.down.qweight", f"{L0}.mlp.gate_up", "input", 50, 7),
    (f"{L1}.self_attn.q_a.weight", f"{L0}.mlp.down", "output", 30, 0),
)


def test_a_copy_is_released_by_the_kernel_that_made_the_dependency() -> None:
    copies = copies_of(PLAN, STEP)
    assert [(c.weight, c.size, c.offset) for c in copies] == [
        (f"{L0}.mlp.gate_up.weight", 100, 0),
        (f"{L0}.mlp.down.qweight", 50, 7),
        (f"{L1}.self_attn.q_a.weight", 30, 0),
    ]
    assert [(STEP.kernels[c.after].op, STEP.kernels[c.after].module) for c in copies] == [
        ("MatMul", f"{L0}.self_attn.o_proj"),
        ("AddRmsNorm", f"{L0}.post_norm"),
        ("QuantBatchMatmul", f"{L0}.mlp.down"),
    ]


def test_a_window_lasts_from_the_dependencys_end_to_the_targets_start() -> None:
    count = len(STEP.kernels)
    step = SimpleNamespace(starts=[10.0 * k for k in range(count)], ends=[10.0 * k + 4 for k in range(count)])
    places = placements_of(PLAN, STEP)
    assert windows(PLAN, STEP, step) == tuple(10.0 * (p.reader - p.producer) - 4 for p in places)  # type: ignore[arg-type]


def test_in_flight_counts_what_waits_between_dependency_and_reader() -> None:
    places = [Placement(0, 0, 3), Placement(1, 1, 2), Placement(2, 2, 5)]
    # Kernel 1: 10; kernel 2: 10 + 20; kernel 3: 10 + 40; kernels 4, 5: 40.
    assert in_flight(places, [10, 20, 40], 6) == ([50, 30, 50], 50)
    assert in_flight([], [], 6) == ([], 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(1, 100)), max_size=8))
def test_in_flight_equals_counting_at_each_kernel(spans: list[tuple[int, int, int]]) -> None:
    places = [Placement(0, p, p + n) for p, n, _ in spans]
    sizes = [s for _, _, s in spans]
    waiting = [sum(s for p, s in zip(places, sizes, strict=True) if p.producer < k <= p.reader) for k in range(20)]
    each, most = in_flight(places, sizes, 19)
    assert most == max(waiting)
    assert each == [max(waiting[p.producer + 1 : p.reader + 1]) for p in places]


@pytest.mark.parametrize(
    "entry",
    [
        (f"{L0}.mlp.gate_up.weight", "model.layers.9.self_attn.o_proj", "output", 1, 0),
        (f"{L0}.mlp.gate_up.weight", "model.embed", "input", 1, 0),
        ("model.layers.9.mlp.gate_up.weight", f"{L0}.self_attn.o_proj", "output", 1, 0),
    ],
)
def test_a_plan_for_another_model_is_told_so(entry: tuple[str, str, str, int, int]) -> None:
    with pytest.raises(ValueError, match="another one"):
        copies_of(plan(entry), STEP)
