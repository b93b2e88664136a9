"""The second position of a candidate, in every layer that has it."""

from dataclasses import replace

from pipeline.analysis.results import Candidate, KernelRef
from pipeline.figures import Figure
from pipeline.mapping.later import later_candidates, later_pairs
from tests.pipeline.mapping.steps import Row, make_step

MIB = 1 << 20
LAYER: list[Row] = [("MatMulV3", 0, 12 * MIB), ("AddRmsNorm", 0, 0), ("Cast", 0, 0), ("MatMulV3", 0, 18 * MIB)]


def ref(row: int, op_type: str) -> KernelRef:
    return KernelRef(row, op_type, op_type, "0")


def candidate(nearest: KernelRef) -> Candidate:
    """Layers 0 to 2; the representative one is layer 1."""
    target, dependency = ref(7, "MatMulV3"), ref(4, "MatMulV3")
    nothing = Figure(0.0, "us")
    pairs = tuple((4 * n + 3, 4 * n) for n in range(3))
    return Candidate(
        target, dependency, nearest, 3, "", 20.0, 18 * MIB, 9 * MIB, "coefficient", 9.0, 9.0, nothing, 0.0, 0.0, (),
        "3a", "high", nothing, pairs,
    )  # fmt: skip


def test_the_nearest_kernel_of_one_layer_is_as_far_back_in_the_others() -> None:
    step = make_step(LAYER * 3)
    assert later_pairs(candidate(ref(5, "AddRmsNorm")), step) == ((3, 1), (7, 5), (11, 9))


def test_a_layer_that_has_another_kernel_there_is_left_out() -> None:
    step = make_step([*LAYER[:1], ("Cast", 0, 0), *LAYER[2:], *LAYER * 2])
    assert later_pairs(candidate(ref(5, "AddRmsNorm")), step) == ((7, 5), (11, 9))


def test_a_candidate_whose_dependency_is_the_nearest_has_no_second_position() -> None:
    step = make_step(LAYER * 3)
    first = candidate(ref(4, "MatMulV3"))
    assert later_pairs(first, step) == ()
    later = later_candidates([first, candidate(ref(6, "Cast"))], step)
    assert [c.dependency.op_type for c in later] == ["Cast"]
    assert replace(later[0], dependency=first.dependency, nearest=first.nearest, pairs=first.pairs) == first
