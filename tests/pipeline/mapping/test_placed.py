"""A profile's step laid over the traced step of the model: streams, names, weights, and what is on one side only."""

import pytest

from models.workload import Kernel, WeightRead, Workload
from pipeline.analysis.operators import operator_table
from pipeline.mapping.placed import Mapping, place
from tests.pipeline.mapping.steps import Row, make_step

MIB = 1 << 20
# One layer: (operator of the model, type in a profile, stream, MiB of its weight)
LAYER = [
    ("AddRmsNorm", "AddRmsNorm", "main", 0),
    ("MLAProlog", "MlaPrologV2", "main", 60),
    ("FusedInferAttentionScore", "FusedInferAttentionScore", "main", 0),
    ("MatMul", "MatMulV3", "main", 12),
    ("AllReduce", "hcom_allReduce_", "main", 0),
    ("MatMul", "MatMulV2", "moe", 18),
    ("MoeGatingTopK", "MoeGatingTopK", "moe", 0),
    ("GroupedMatmul", "GroupedMatmul", "moe", 96),
    ("QuantBatchMatmul", "QuantBatchMatmulV3", "main", 18),
    ("DequantSwigluQuant", "DequantSwigluQuant", "main", 0),
    ("QuantBatchMatmul", "QuantBatchMatmulV3", "main", 9),
]


def workload(layers: int = 3) -> Workload:
    kernels = []
    for layer in range(layers):
        for op, _, stream, size in LAYER:
            k = len(kernels)
            reads = (WeightRead(f"layers.{layer}.w{k}", size * MIB),) if size else ()
            kernels.append(Kernel(k, op, f"layers.{layer}", "cube", stream, weights=reads, layer=layer))
    return Workload(tuple(kernels), layers=layers)


def rows(layers: int = 3) -> list[Row]:
    return [(kind, 7 if stream == "main" else 9, size * MIB) for _, kind, stream, size in LAYER * layers]


def mapped(found: list[Row], model: Workload) -> Mapping:
    return place(make_step(found), model, operator_table())


def test_every_kernel_is_found_by_operator_and_weight_whatever_version_its_name_carries() -> None:
    found = mapped(rows(), workload())
    assert [(p.at, p.kernel) for p in found.placed] == [(k, k) for k in range(33)]
    assert {p.sure for p in found.placed} == {"sure"}
    assert not found.unplaced
    assert not found.missing


def test_collectives_on_a_stream_of_their_own_are_found_too() -> None:
    profile = [(kind, 11 if kind.startswith("hcom") else stream, size) for kind, stream, size in rows()]
    found = mapped(profile, workload())
    assert [(p.at, p.kernel) for p in found.placed] == [(k, k) for k in range(33)]


def test_a_kernel_that_only_the_profile_has_is_unplaced_and_one_that_only_the_model_has_is_missing() -> None:
    profile = rows()
    profile.insert(12, ("TensorMove", 7, 0))  # in the second layer
    del profile[2]  # attention of the first
    found = mapped(profile, workload())
    assert [profile[at][0] for at in found.unplaced] == ["TensorMove"]
    assert found.missing == (2,)
    assert len(found.placed) == 32


def test_fused_names_of_one_kind_are_likely_not_sure() -> None:
    profile = [("InplaceAddRmsNorm" if kind == "AddRmsNorm" else kind, stream, size) for kind, stream, size in rows()]
    norms = [p for p in mapped(profile, workload()).placed if p.at % 11 == 0]
    assert [p.kernel for p in norms] == [0, 11, 22]
    assert {p.sure for p in norms} == {"likely"}


def test_of_fewer_layers_than_the_model_has_it_cannot_be_told_which_they_are() -> None:
    found = mapped(rows(2), workload(3))
    assert len(found.placed) == 22
    assert "ambiguous" in {p.sure for p in found.placed}


@pytest.mark.parametrize("factor", [2, 0.5])
def test_a_profile_of_another_model_places_little(factor: float) -> None:
    other = [("Conv2D", 7, 0), ("BiasAdd", 7, 0), ("Relu", 7, 0), ("MatMulV3", 7, int(5 * factor * MIB))] * 10
    assert mapped(other, workload()).poor


def test_a_profile_of_another_quantisation_is_told_by_its_weights_though_most_kernels_fit() -> None:
    other = [(kind, stream, size // 2) for kind, stream, size in rows()]
    found = mapped(other, workload())
    assert len(found.placed) > 33 / 2
    assert (found.weights, found.weighty) == (3, 18)  # 9 MiB are half of 18
    assert found.poor


def test_a_kernel_that_ran_before_what_it_reads_was_there_is_not_sure() -> None:
    kernels = (
        Kernel(0, "AddRmsNorm", "norm", "vector", "main"),
        Kernel(1, "MatMul", "up", "cube", "main", weights=(WeightRead("up.weight", 8 * MIB),), inputs=(0,)),
        Kernel(2, "DynamicQuant", "quant", "vector", "moe", inputs=(1,)),
    )
    profile: list[Row] = [("AddRmsNorm", 7, 0), ("MatMulV3", 7, 8 * MIB), ("DynamicQuant", 9, 0)]
    operators = operator_table()
    late = make_step(profile, us=5.0, starts=[0.0, 5.0, 10.0])
    assert {p.sure for p in place(late, Workload(kernels), operators).placed} == {"sure"}
    early = make_step(profile, us=5.0, starts=[0.0, 5.0, 7.0])
    assert [p.sure for p in place(early, Workload(kernels), operators).placed] == ["sure", "ambiguous", "ambiguous"]


def test_what_is_left_over_is_not_paired_across_layers() -> None:
    """An operator that the model has in its last layer only and the profile on a stream of its own in the first."""
    model = workload()
    last = Kernel(33, "Softmax", "head", "vector", "main")
    whole = Workload((*model.kernels, last), layers=3)
    profile = rows()
    profile.insert(3, ("Softmax", 12, 0))
    found = mapped(profile, whole)
    assert found.unplaced == (3,)
    assert found.missing == (33,)
