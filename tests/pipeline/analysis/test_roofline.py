"""Classes of kernels: the figures of real rows, and each rule by itself."""

from typing import Any

import pytest

from models.problems import RefusedError
from pipeline.analysis.analyse import analyse, per_row
from pipeline.analysis.operators import operator_table
from pipeline.simulator.machine import Machine, load_machine
from tests.pipeline.analysis.frames import collective, in_order, matmul, profile, vector


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_machine("atlas_a2")


def row(machine: Machine, kernel: dict[str, Any]) -> dict[str, Any]:
    """The roofline's columns of one kernel."""
    measured = profile(in_order([kernel]))
    return per_row(measured, analyse(measured, machine), machine).row(0, named=True)


def nz_matmul() -> dict[str, Any]:
    return matmul(
        1, 1024, 3072, 5.44, "FLOAT16",
        input_shapes="1,1024;64,192,16,16", input_formats="ND;FRACTAL_NZ", mte2_ratio=0.779, mac_ratio=0.122,
        cube_utilization=80.8,
    )  # fmt: skip


def test_a_decode_matmul_is_memory_bound_although_its_load_pipe_is_below_0_8(machine: Machine) -> None:
    found = row(machine, nz_matmul())
    assert found["class"] == "memory" and found["agrees"] is True
    # of the weight alone 1157 GB/s; input and output add 8 KiB
    assert found["gb_s"] == pytest.approx(1157, rel=2e-3)
    assert found["hbm_share"] == pytest.approx(0.72, abs=0.01)


def test_a_saturated_load_pipe_far_from_the_hbm_peak(machine: Machine) -> None:
    found = row(machine, matmul(32, 9216, 4096, 346.6, "FLOAT", mte2_ratio=0.983, mac_ratio=0.152))
    assert (found["class"], found["reason"], found["agrees"]) == ("memory", "far_from_peak", True)
    assert (found["bytes"] - 4 * 32 * (9216 + 4096)) == 150_994_944
    assert pytest.approx(436, abs=1) == 150_994_944 / 346.6 / 1e3


def test_one_near_the_hbm_peak(machine: Machine) -> None:
    found = row(machine, matmul(32, 4096, 4096, 45.9, "FLOAT", mte2_ratio=0.906, mac_ratio=0.561))
    assert (found["class"], found["reason"]) == ("memory", "bytes")
    assert found["hbm_share"] > 0.91 and (found["bytes"] - 2 * 4 * 32 * 4096) / 45.9 / 1e3 == pytest.approx(1461, abs=2)


def test_a_fast_large_matmul_is_compute_bound_though_its_load_pipe_is_busiest(machine: Machine) -> None:
    """The common rule mte2 / max(mac, vec) > 1 calls it memory-bound: 0.964 / 0.824 is 1.17."""
    found = row(machine, matmul(4096, 8192, 512, 185.5, mte2_ratio=0.964, mac_ratio=0.824))
    assert (found["class"], found["agrees"]) == ("compute", False)
    assert found["tflops"] == pytest.approx(185, abs=1)


def test_above_the_hbm_peak_the_bytes_came_from_l2(machine: Machine) -> None:
    found = row(machine, matmul(8, 4096, 4096, 12.0))
    assert found["hbm_share"] > 1.5 and (found["class"], found["reason"]) == ("memory", "above_peak")


def test_a_fused_moe_kernel_that_its_scalar_pipe_limits(machine: Machine) -> None:
    kernel = {
        "op_type": "MoeDistributeDispatch", "core": "MIX_AIC", "duration_us": 60.0, "input_shapes": "8,7168",
        "input_dtypes": "BF16", "output_shapes": "64,7168", "output_dtypes": "BF16", "aicore_us": 58.0,
        "mac_ratio": 0.007, "mte2_ratio": 0.045, "scalar_ratio": 0.444,
    }  # fmt: skip
    assert row(machine, kernel)["class"] == "scalar"


def test_launch_bound_is_short_with_idle_cores_and_not_a_small_matmul_near_its_bandwidth(machine: Machine) -> None:
    assert row(machine, vector("Add", 4096, 2.0))["class"] == "launch"
    assert row(machine, vector("Add", 4096, 2.0, aiv_us=1.9, vec_ratio=0.8))["class"] == "vector"
    assert row(machine, vector("Add", 4096, 9.0))["class"] != "launch"
    assert row(machine, nz_matmul() | {"duration_us": 4.9, "aicore_us": 3.0})["class"] == "memory"


def test_a_vector_kernel_that_moves_much_is_memory_bound(machine: Machine) -> None:
    found = row(machine, vector("Mul", 9 << 20, 26.9, aiv_us=26.0, aiv_mte2_ratio=0.8))
    assert (found["class"], found["agrees"]) == ("memory", True)


def test_collectives_are_communication_whatever_their_name(machine: Machine) -> None:
    assert (
        row(machine, {**collective(20.0), **{"input_shapes": "8,8", "input_dtypes": "BF16"}})["class"]
        == "communication"
    )
    renamed = vector("SomethingNew", 4096, 30.0, core="COMMUNICATION")
    assert row(machine, renamed)["class"] == "communication"


def test_without_bytes_two_busy_pipes_prove_nothing(machine: Machine) -> None:
    wrong = matmul(8, 4096, 4096, 180.0, input_shapes="80,4096;4000,4096")
    assert row(machine, wrong | {"mte2_ratio": 0.96, "mac_ratio": 0.82})["reason"] == "balanced"
    assert row(machine, wrong | {"mte2_ratio": 0.96, "mac_ratio": 0.1})["reason"] == "pipe_only"


def test_a_vector_kernel_whose_cube_columns_are_zero_has_no_busy_cube(machine: Machine) -> None:
    """Real files have 0 in the columns of the core that a kernel does not use."""
    zeros = dict.fromkeys(("aicore_us", "mac_ratio", "mte1_ratio", "mte2_ratio", "scalar_ratio", "fixpipe_ratio"), 0.0)
    found = row(machine, vector("TransData", 1 << 20, 23.0, aiv_us=22.0, aiv_mte2_ratio=0.8) | zeros)
    assert (found["class"], found["reason"], found["busiest"]) == ("memory", "load_pipe", "aiv_mte2")


def test_ratios_without_prefix_are_shares_of_the_only_core_s_time(machine: Machine) -> None:
    """310P: one time for all pipes; 2 % of the Cube is less than 90 % of the vector unit."""
    only = {"aicore_us": 22.0, "mac_ratio": 0.02, "mte2_ratio": 0.3, "scalar_ratio": 0.1, "vec_ratio": 0.9}
    kernel = vector("Gelu", 1 << 16, 23.0) | only | {"aiv_us": None, "aiv_mte2_ratio": None}
    assert (row(machine, kernel)["busiest"], row(machine, kernel)["class"]) == ("vec", "vector")


def test_ratios_without_a_load_pipe_neither_confirm_nor_deny(machine: Machine) -> None:
    """ArithmeticUtilization: the Cube is the busiest of what was measured, which says nothing."""
    found = row(machine, matmul(8, 7168, 4096, 45.0, mte2_ratio=None, mac_ratio=0.2))
    assert (found["class"], found["busiest"], found["agrees"]) == ("memory", None, None)


def test_shapes_without_ratios_are_enough_for_a_matmul_and_not_for_a_long_vector_kernel(machine: Machine) -> None:
    bare = {"aicore_us": None, "mac_ratio": None, "mte2_ratio": None}
    found = row(machine, matmul(8, 7168, 4096, 45.0) | bare)
    assert found["class"] == "memory" and found["agrees"] is None
    idle = vector("Sort", 64, 90.0) | {"aiv_us": None, "vec_ratio": None, "aiv_mte2_ratio": None}
    assert row(machine, idle)["class"] == "unknown"


def test_level0_is_refused_and_says_how_to_capture(machine: Machine) -> None:
    bare = [{"op_type": "MatMulV2", "core": "AI_CORE", "duration_us": 9.0}]
    with pytest.raises(RefusedError) as refused:
        analyse(profile(in_order(bare), kind="level0"), machine)
    (problem,) = refused.value.problems
    assert problem.code == "cannot-classify" and "PipeUtilization" in problem.fix


def test_contradicting_shapes_are_told_with_their_line(machine: Machine) -> None:
    kernels = in_order([matmul(8, 4096, 4096, 30.0), matmul(8, 4096, 4096, 30.0, input_shapes="8,4097;4096,4096")])
    problems = [p for p in analyse(profile(kernels), machine).problems if p.code == "inconsistent-shapes"]
    assert len(problems) == 1 and problems[0].line == 3 and "8x4097" in problems[0].message


def test_all_lines_of_equal_contradictions_are_named_up_to_five(machine: Machine) -> None:
    wrong = matmul(8, 4096, 4096, 30.0, input_shapes="8,4097;4096,4096")
    (problem,) = [
        p for p in analyse(profile(in_order([wrong] * 7)), machine).problems if p.code == "inconsistent-shapes"
    ]
    assert problem.line == 2 and "7 kernels" in problem.message and "(lines 2, 3, 4, 5, 6, ...)" in problem.message


def test_every_row_gets_its_class_in_the_order_of_the_file(machine: Machine) -> None:
    kernels = in_order([vector("Add", 4096, 2.0), matmul(8, 7168, 4096, 45.0), collective(9.0)])
    measured = profile(reversed(kernels))
    rows = per_row(measured, analyse(measured, machine), machine)
    assert rows["class"].to_list() == ["communication", "memory", "launch"]
    assert rows["line"].to_list() == [2, 3, 4]


@pytest.mark.parametrize(
    ("op_type", "kind"),
    [
        ("MatMulV3", "matmul"),
        ("MatMulV2", "matmul"),
        ("BatchMatMulV2", "batch_matmul"),
        ("TransposeBatchMatMul", "batch_matmul"),
        ("Transpose", "move"),
        ("QuantBatchMatmulV3", "quant_matmul"),
        ("WeightQuantBatchMatmulV2", "quant_matmul"),
        ("GroupedMatmulSwigluQuant", "grouped_matmul"),
        ("MlaPrologV3", "mla_prolog"),
        ("hcom_allReduce__541_0_1", "communication"),
        ("AllGather", "communication"),
        ("MoeDistributeCombineV2", "dispatch_combine"),
        ("AddRmsNorm", "norm"),
        ("DequantSwigluQuant", "activation"),
        ("FusedInferAttentionScore", "attention"),
        ("NeverHeardOf", "other"),
        (None, "other"),
    ],
)
def test_kinds(op_type: str | None, kind: str) -> None:
    assert operator_table().kind(op_type).name == kind


def test_the_specification_s_table_is_data() -> None:
    kinds = operator_table().kinds
    targets = {n for n, k in kinds.items() if k.target}
    assert targets == {"matmul", "batch_matmul", "quant_matmul", "grouped_matmul", "mla_prolog"}
    assert all(kinds[n].priority == "high" for n in targets)
    assert all(k.priority == "low" for n, k in kinds.items() if n not in targets)
    never = {n for n, k in kinds.items() if k.intensive == "never"}
    assert {"norm", "rope", "activation", "topk", "dispatch_combine"} <= never
    assert not kinds["communication"].dependency and kinds["communication"].flagged
    assert all(set(k.row) == {"en", "zh"} for k in kinds.values())


@pytest.mark.parametrize(
    ("ops", "intensive", "dependency", "target"),
    [
        (("MatMulV3", "BatchMatMulV2", "QuantBatchMatmulV3", "GroupedMatmul"), {"memory_bound"}, True, True),
        (("hcom_send_", "hcom_receive_", "hcom_allReduce_", "Send", "Receive"), {"always"}, False, False),
        (("Transpose", "ConcatD", "Cast", "Reshape"), {"large_move"}, True, False),
        (("LayerNormV4", "RmsNorm", "ApplyRotaryPosEmb", "RotaryMul"), {"never"}, True, False),
        (("SwiGlu", "Gelu", "Silu", "DequantSwigluQuant"), {"never"}, True, False),
        (("MoeGatingTopKSoftmax", "MoeDistributeDispatchV2", "MoeDistributeCombineV2"), {"never"}, True, False),
        (("MlaPrologV2",), {"memory_bound"}, True, True),
    ],
)
def test_rows_of_the_specification_s_tables(
    ops: tuple[str, ...], intensive: set[str], dependency: bool, target: bool
) -> None:
    """Who needs the bandwidth, whose output is a window, who is a target and with which priority."""
    kinds = [operator_table().kind(op) for op in ops]
    assert {k.intensive for k in kinds} == intensive
    assert all((k.dependency, k.target) == (dependency, target) for k in kinds)
    assert {k.priority for k in kinds} == {"high" if target else "low"}
