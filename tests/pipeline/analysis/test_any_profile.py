"""Whatever a reader lets through, the analysis ends with a result that is sane."""

import json
import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.problems import RefusedError
from pipeline.analysis.analyse import analyse, per_row
from pipeline.simulator.machine import load_machine
from tests.pipeline.analysis.frames import profile

MACHINE = load_machine("atlas_a3")
OPS = ["MatMulV3", "QuantBatchMatmulV3", "GroupedMatmul", "MlaPrologV2", "hcom_allReduce_", "AddRmsNorm", "Add", "Cast"]
SHAPES = ["8,4096;4096,8192", "8,4096;4,4096,2048", "8,4096", "", ";", "0,4096;4096,8", "1,1;1,1", "8,4097;4096,8192"]
numbers = st.one_of(st.none(), st.floats(0, 1.5))
kernels = st.fixed_dictionaries(
    {
        "op_type": st.one_of(st.none(), st.sampled_from([*OPS, "Unheard", ""])),
        "core": st.sampled_from([None, "AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "HCCL", "AI_CPU"]),
        "stream": st.sampled_from([None, "2", "7"]),
        "step": st.sampled_from([None, 1, 2, 3]),
        "start_us": st.floats(0, 500),
        "duration_us": st.one_of(st.just(0.0), st.floats(0, 200)),
        "input_shapes": st.sampled_from([None, *SHAPES]),
        "input_dtypes": st.sampled_from([None, "BF16;BF16", "INT8;INT8", "UNDEFINED", "ODD;ODD"]),
        "input_formats": st.sampled_from([None, "ND;ND", "ND;FRACTAL_NZ"]),
        "output_shapes": st.sampled_from([None, "8,8192", "8,2048", "", "0,8"]),
        "output_dtypes": st.sampled_from([None, "BF16"]),
        "output_formats": st.sampled_from([None, "ND"]),
        "aicore_us": numbers,
        "mac_ratio": numbers,
        "mte2_ratio": numbers,
        "aiv_us": numbers,
        "vec_ratio": numbers,
    }
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(kernels, min_size=1, max_size=12), st.integers(1, 4))
def test_any_kernels_give_a_sane_result_or_a_refusal(some: list[dict[str, object]], times: int) -> None:
    measured = profile(some * times)
    try:
        result = analyse(measured, MACHINE)
    except RefusedError as refused:
        assert not measured.has_shapes and not measured.has_ratios and refused.problems
        return
    json.dumps(result.to_json(), allow_nan=False)
    assert result.phases or result.outside == measured.kernels.height
    for phase in result.phases:
        assert phase.busy_us <= phase.kernel_us + 1e-6
        assert math.isclose(sum(phase.classes.values()), 1.0) or phase.kernel_us == 0
        assert phase.in_flight <= phase.l2_budget * 1.0001
        for c in phase.candidates:
            assert 0 < c.max_size <= min(c.weight_bytes, c.fits.value * 1.0001, c.room * 1.0001)
            assert c.window_us >= 0 and (c.fits.low or 0) <= c.fits.value <= (c.fits.high or 0)
            assert all(target != dependency for target, dependency in c.pairs)
    rows = per_row(measured, result, MACHINE)
    assert rows.height == measured.kernels.height and rows["class"].null_count() == 0
