"""Chains of a profile as scopes: the modules of one forward that lie inside, the same ones in every layer."""

from models.workload import Kernel, ModuleCall, Workload
from pipeline.analysis.operators import operator_table
from pipeline.analysis.results import Chain, KernelRef
from pipeline.figures import Figure
from pipeline.mapping.placed import place
from pipeline.mapping.scopes import NamedScope, name_scopes
from tests.pipeline.mapping.steps import make_step


def model(twice: bool = False) -> Workload:
    """Two layers of `block`, which calls norm, cast, act, and then adds; or of two such blocks each."""
    names = ["block.0", "block.1"] if twice else ["block"]
    kernels: list[Kernel] = []
    calls: dict[str, tuple[ModuleCall, ...]] = {}
    event = 0
    for layer in range(2):
        for block in names:
            base = f"model.layers.{layer}.{block}"
            enter, event = event, event + 1
            first = len(kernels)
            for child, op in (("norm", "RmsNorm"), ("cast", "Cast"), ("act", "SwiGlu"), ("", "Add")):
                k = len(kernels)
                fqn = f"{base}.{child}" if child else base
                kernels.append(Kernel(k, op, fqn, "vector", inputs=(k - 1,) if k else (), layer=layer))
                if child:
                    calls[fqn] = (ModuleCall(fqn, event, event + 1, k - 1 if k else None, k),)
                    event += 2
            calls[base] = (ModuleCall(base, enter, event, first - 1 if first else None, len(kernels) - 1),)
            event += 1
    return Workload(tuple(kernels), calls, layers=2)


def named(workload: Workload, ends: list[tuple[int, int]], worth: bool = True) -> tuple[list[NamedScope], list[Chain]]:
    step = make_step([(k.op, 0, 0) for k in workload.kernels])
    mapping = place(step, workload, operator_table())
    refs = [KernelRef(row, step.op_types[row], step.op_types[row], "0") for row in ends[0]]
    count = ends[0][1] - ends[0][0] + 1
    chain = Chain(refs[0], refs[1], (), len(ends), count, 0, 9.0, Figure(3.0, "us"), 0.01, worth, tuple(ends))
    return name_scopes([chain], step, mapping, workload, "model", "layers")


def test_a_chain_that_is_a_whole_module_is_that_module() -> None:
    (scope,), rest = named(model(), [(0, 3), (4, 7)])
    assert (scope.first, scope.last) == ("layers.{i}.block", "layers.{i}.block")
    assert (scope.kernels, scope.layers, rest) == (4, 2, [])


def test_a_chain_inside_a_module_goes_from_its_first_to_its_last_child_that_lies_inside() -> None:
    (scope,), _ = named(model(), [(1, 3), (5, 7)])
    assert (scope.first, scope.last, scope.kernels) == ("layers.{i}.block.cast", "layers.{i}.block.act", 2)


def test_a_chain_of_one_module_and_of_parts_of_two_has_none() -> None:
    scopes, rest = named(model(), [(2, 4)])
    assert scopes == []
    assert len(rest) == 1


def test_what_is_not_worth_it_is_not_named() -> None:
    assert named(model(), [(0, 3), (4, 7)], worth=False) == ([], [])


def test_two_scopes_of_one_statement_are_left_out() -> None:
    """Both blocks of a layer run the same forward."""
    workload = model(twice=True)
    step = make_step([(k.op, 0, 0) for k in workload.kernels])
    mapping = place(step, workload, operator_table())
    chains = []
    for start in (1, 5):
        refs = [KernelRef(row, step.op_types[row], "", "0") for row in (start, start + 2)]
        ends = ((start, start + 2), (start + 8, start + 10))
        chains.append(Chain(refs[0], refs[1], (), 2, 4, 0, 9.0, Figure(3.0, "us"), 0.01, True, ends))
    scopes, rest = name_scopes(chains, step, mapping, workload, "model", "layers")
    assert scopes == []
    assert rest == chains
