"""Merging kernels: nothing is lost, data still flows, and what can't be one kernel stays several."""

from hypothesis import given
from hypothesis import strategies as st

from models.fusion import Graph, Group, Launch
from models.fusion_rules import fuse
from models.reads import ActivationRead
from models.workload import Kernel, ModuleCall, WeightRead

RESULT = 100  # bytes of every result


def launch(index, op="Mul", inputs=(), engine="vector", module="m", path=(0,), weights=(), flops=1.0, outside=0):
    """A kernel that reads all of the results of its inputs, and `outside` bytes from nobody."""
    reads = {("k", i): ActivationRead(RESULT, frozenset((i,))) for i in inputs}
    if outside:
        reads["x", index] = ActivationRead(outside, frozenset())
    total = sum(r.bytes for r in reads.values()) + RESULT
    read = tuple(WeightRead(name, 1000) for name in weights)
    kernel = Kernel(
        index, op, module, engine, flops=flops, weights=read, other_bytes=float(total), inputs=tuple(sorted(inputs))
    )
    return Launch(kernel, path, reads, RESULT, glue=True)


def merged(launches, *members, op="Fused"):
    return Graph(launches).merged([Group(frozenset(m), op, max(m)) for m in members])


def ops(graph):
    return [k.kernel.op for k in graph.launches]


def test_what_only_members_read_is_no_longer_moved():
    chain = [launch(0, "A", outside=7), launch(1, "B", (0,)), launch(2, "C", (1,)), launch(3, "D", (2,))]
    graph, new = merged(chain, (1, 2))
    assert ops(graph) == ["A", "Fused", "D"] and new == [0, 1, 1, 2]
    assert graph.kernel(1).other_bytes == 2 * RESULT  # 400 before
    assert graph.kernel(1).flops == 2 and graph.kernel(2).inputs == (1,)


def test_a_result_that_others_read_too_is_still_written():
    graph, _ = merged([launch(0), launch(1, inputs=(0,)), launch(2, inputs=(0, 1))], (0, 1))
    assert graph.kernel(0).other_bytes == 2 * RESULT  # both results, nothing read


def test_what_several_members_read_is_read_once():
    launches = [launch(0), launch(1, inputs=(0,)), launch(2, inputs=(0, 1)), launch(3, inputs=(2,))]
    graph, _ = merged(launches, (1, 2))
    assert graph.kernel(1).other_bytes == RESULT + RESULT


def test_weights_stay_and_are_read_once():
    graph, _ = merged([launch(0, weights=("a", "b")), launch(1, inputs=(0,), weights=("b",))], (0, 1))
    assert [(w.weight, w.share) for w in graph.kernel(0).weights] == [("a", 1.0), ("b", 1.0)]


def test_a_kernel_between_two_members_keeps_them_apart():
    launches = [launch(0), launch(1, inputs=(0,)), launch(2, inputs=(1,))]
    graph, new = merged(launches, (0, 2))
    assert len(graph) == 3 and new == [0, 1, 2]


def test_two_groups_that_wait_for_each_other_stay_as_they_were():
    launches = [launch(0), launch(1), launch(2, inputs=(1,)), launch(3, inputs=(0,))]
    graph, _ = merged(launches, (0, 2), (1, 3))
    assert len(graph) == 4


def test_the_order_changes_only_where_data_asks_for_it():
    launches = [launch(0, "A"), launch(1, "B"), launch(2, "C", (0,)), launch(3, "D", (1,)), launch(4, "E", (0, 3))]
    graph, new = merged(launches, (0, 3))  # C reads A, so it has to come after both
    assert ops(graph) == ["B", "Fused", "C", "E"] and new == [1, 0, 2, 1, 3]


@given(st.data())
def test_laws(data):
    """Any groups on any data flow: program order, all weights, all operations, and who depends on whom."""
    count = data.draw(st.integers(2, 12))
    launches = []
    for i in range(count):
        inputs = data.draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        launches.append(launch(i, str(i), inputs, weights=(f"w{i}",)))
    groups = data.draw(st.lists(st.sets(st.integers(0, count - 1), min_size=2, max_size=4), max_size=4))
    graph, new = merged(launches, *groups)
    assert all(k.kernel.index == i and all(j < i for j in k.kernel.inputs) for i, k in enumerate(graph.launches))
    assert sorted(w.weight for k in graph.launches for w in k.kernel.weights) == sorted(f"w{i}" for i in range(count))
    assert sum(k.kernel.flops for k in graph.launches) == count
    for before in launches:
        for i in before.kernel.inputs:
            a, b = new[i], new[before.kernel.index]
            assert a == b or a in graph.kernel(b).inputs
    assert sum(k.kernel.other_bytes for k in graph.launches) <= sum(k.kernel.other_bytes for k in launches)


# --- rules ---------------------------------------------------------------------------------------------------------


def fused(launches, leaves=()):
    kernels, _ = fuse(launches, {}, leaves)
    return [(k.op, k.module) for k in kernels]


def test_calls_follow_their_kernels():
    norm = [launch(i, op, (i - 1,) if i else (), module="n", path=(0, 1)) for i, op in enumerate(["Pow", "Rsqrt"])]
    after = launch(2, "MatMul", (1,), "cube", "n.next")
    kernels, calls = fuse([*norm, after], {"n": [ModuleCall("n", 0, 1, None, 1), ModuleCall("n", 2, 3, 1, 2)]}, {"n"})
    assert [(k.op, k.inputs) for k in kernels] == [("RmsNorm", ()), ("MatMul", (0,))]
    assert [(c.input_kernel, c.output_kernel) for c in calls["n"]] == [(None, 0), (0, 1)]


def test_an_activation_with_two_readers_is_not_gated():
    one = [launch(0, "MatMul", (), "cube"), launch(1, "Swish", (0,)), launch(2, "Mul", (0, 1))]
    assert fused(one) == [("MatMul", "m"), ("SwiGLU", "m")]
    assert [op for op, _ in fused([*one, launch(3, "Add", (1,))])] == ["MatMul", "Swish", "Mul", "Add"]


def test_the_best_of_many_is_gating_only_after_a_product_with_a_weight():
    router = [
        launch(0, "MatMul", (), "cube", weights=("gate",)),
        launch(1, "SoftmaxV2", (0,)),
        launch(2, "TopKV2", (1,)),
    ]
    assert [op for op, _ in fused(router)] == ["MatMul", "MoeGatingTopK"]
    indexer = [launch(0, "BatchMatMul", (), "cube"), launch(1, "Relu", (0,)), launch(2, "TopKV2", (1,))]
    assert [op for op, _ in fused(indexer)] == ["LightningIndexer"]
    alone = [launch(0, "Relu"), launch(1, "TopKV2", (0,))]
    assert [op for op, _ in fused(alone)] == ["Relu", "TopKV2"]


def test_attention_needs_products_of_activations_on_both_sides():
    def attention(weights):
        return [
            launch(0, "MatMul", (), "cube", weights=("q",)),
            launch(1, "BatchMatMul", (0,), "cube", weights=weights),
            launch(2, "Mul", (1,)),
            launch(3, "SoftmaxV2", (2,)),
            launch(4, "BatchMatMul", (3,), "cube"),
            launch(5, "TensorMove", (4,)),
        ]

    assert [op for op, _ in fused(attention(()))] == ["MatMul", "FusedInferAttentionScore"]
    assert len(fused(attention(("w",)))) == 6


def test_rows_and_columns_normalised_in_turn_are_one_kernel():
    def chain(steps):
        ops = ["SoftmaxV2"] + ["ReduceSum", "Add", "RealDiv"] * steps
        return [launch(i, op, (i - 1,) if i else ()) for i, op in enumerate(ops)]

    assert [op for op, _ in fused(chain(5))] == ["SoftmaxV2", "Sinkhorn"]
    assert len(fused(chain(1))) == 4
