"""Which kernels of a plain PyTorch model are one fused operator on the NPU.

Recognised by what is computed and how data flows, not by the names of classes. What no rule knows stays as it is.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

from models.fusion import Graph, Group, Launch, moved
from models.workload import Kernel, ModuleCall

_ACTIVATIONS = {"Swish": "SwiGLU", "Gelu": "GeGluV2"}
_NORMS = ("RmsNorm", "LayerNorm")
_MOVES = ("TensorMove", "Cast")  # what only changes place, order or type
_NORMALISING = frozenset(("ReduceSum", "Add", "RealDiv"))
_SINKHORN_STEPS = 4
_ROUTER_LIMIT = 8  # results of a router are no larger than this many times its scores


def fuse(
    launches: list[Launch], calls: Mapping[str, list[ModuleCall]], leaves: Collection[str]
) -> tuple[list[Kernel], dict[str, list[ModuleCall]]]:
    """Apply every rule, one after the other.

    Args:
        launches: of the step, in program order.
        calls: of the modules.
        leaves: FQNs of the modules that have no modules inside.

    Returns:
        The kernels, numbered again, and the calls that refer to them.
    """
    graph = Graph(launches)
    found = dict(calls)
    rules: list[Callable[[Graph], Iterator[Group]]] = [
        lambda g: _leaf_modules(g, leaves),
        _attention,
        _sinkhorn,
        _indexer,
        _gating,
        _gated_activation,
        _add_norm,
    ]
    for rule in rules:
        graph, new_index = graph.merged(list(rule(graph)))
        found = moved(found, new_index)
    return [launch.kernel for launch in graph.launches], found


# --- one module, one kernel ------------------------------------------------------------------------------------------


def _leaf_modules(graph: Graph, leaves: Collection[str]) -> Iterator[Group]:
    """Norms, activations and rotary tables: one call of a module without others inside."""
    by_call: dict[tuple[int, ...], list[Launch]] = {}
    for launch in graph.launches:
        if launch.kernel.module in leaves and launch.path:
            by_call.setdefault(launch.path, []).append(launch)
    for group in by_call.values():
        if len(group) > 1 and all(g.glue and g.kernel.engine == "vector" for g in group):
            op = _what({g.kernel.op for g in group})
            if op:
                members = frozenset(g.kernel.index for g in group)
                yield Group(members, op, max(members))
        elif len(group) > 1 and _what({g.kernel.op for g in group}) == "GatherV2":
            members = frozenset(g.kernel.index for g in group)  # the angles are an outer product
            yield Group(members, "GatherV2", max(members))


def _what(ops: set[str]) -> str | None:
    """The fused operator that does these aten ops."""
    if "LayerNorm" in ops:
        return "LayerNorm"
    if "Rsqrt" in ops or "FusedRmsNorm" in ops or {"Pow", "ReduceMean", "Mul"} <= ops:
        return "LayerNorm" if {"Sub", "ReduceMean"} <= ops else "RmsNorm"
    if "LinalgVectorNorm" in ops and ops & {"RealDiv", "Reciprocal"}:
        return "L2Normalize"
    if {"Cos", "Sin"} <= ops:
        return "GatherV2"  # rotary tables are computed once and looked up by position
    if ops & {"Erf", "Gelu"} or {"Tanh", "Add", "Mul"} <= ops:
        return "Gelu"
    if ops == {"Sigmoid", "Mul"}:
        return "Swish"
    return None


# --- attention -------------------------------------------------------------------------------------------------------


def _attention(graph: Graph) -> Iterator[Group]:
    """Scores (a product of two activations), softmax, product with the values, and what only serves these."""
    for launch in graph.launches:
        if launch.kernel.op != "SoftmaxV2" or not launch.glue:
            continue
        call = launch.path[:-1]
        scores = _nearest(graph, launch, call, _inputs(graph))
        values = _nearest(graph, launch, call, lambda i: graph.consumers[i])
        if scores is None or values is None:
            continue
        call = graph.launches[scores].path
        members = _between(graph, {scores}, values)
        _absorb_before(graph, members, call)
        after = graph.consumers[values]
        if len(after) == 1 and graph.kernel(next(iter(after))).op in _MOVES:
            members |= after
        yield Group(frozenset(members), "FusedInferAttentionScore", values)


def _inputs(graph: Graph) -> Callable[[int], Collection[int]]:
    return lambda index: graph.kernel(index).inputs


def _nearest(graph: Graph, start: Launch, call: tuple[int, ...], step: Callable[[int], Collection[int]]) -> int | None:
    """The first product of two activations from `start` on, through element-wise kernels of the same call."""
    seen: set[int] = set()
    queue = list(step(start.kernel.index))
    while queue:
        index = queue.pop(0)
        if index in seen:
            continue
        seen.add(index)
        launch = graph.launches[index]
        if not launch.glue or launch.path[: len(call)] != call:
            continue
        if launch.kernel.engine == "cube":
            if not launch.kernel.weights:
                return index
            continue
        queue += step(index)
    return None


def _between(graph: Graph, sources: set[int], target: int) -> set[int]:
    """Everything on a path from one of the sources to the target, both included."""
    reached = set(sources)
    for index in range(min(sources) + 1, target + 1):
        if any(i in reached for i in graph.kernel(index).inputs):
            reached.add(index)
    needed = {target}
    for index in range(target, min(sources) - 1, -1):
        if index in needed:
            needed.update(graph.kernel(index).inputs)
    return reached & needed | {target}


def _absorb_before(
    graph: Graph, members: set[int], call: tuple[int, ...], engines: Collection[str] = ("vector",)
) -> None:
    """Add the kernels of the call without weights whose results nobody else reads: scaling, masks, repeated heads."""
    queue = [i for m in members for i in graph.kernel(m).inputs]
    while queue:
        index = queue.pop()
        launch = graph.launches[index]
        if index in members or not launch.glue or launch.path[: len(call)] != call:
            continue
        if launch.kernel.engine in engines and not launch.kernel.weights and graph.consumers[index] <= members:
            members.add(index)
            queue += launch.kernel.inputs


def _sinkhorn(graph: Graph) -> Iterator[Group]:
    """Rows and columns of a small matrix are normalised in turn, many times: one chain in one call."""
    chain: list[int] = []
    path: tuple[int, ...] = ()
    for launch in [*graph.launches, None]:
        steps = launch is not None and launch.glue and launch.kernel.op in _NORMALISING
        if launch is not None and steps and launch.path == path and set(launch.kernel.inputs) & set(chain[-2:]):
            chain.append(launch.kernel.index)
            continue
        if sum(graph.kernel(i).op == "RealDiv" for i in chain) >= _SINKHORN_STEPS:
            yield Group(frozenset(chain), "Sinkhorn", chain[-1])
        chain, path = ([launch.kernel.index], launch.path) if launch is not None and steps else ([], ())


def _indexer(graph: Graph) -> Iterator[Group]:
    """What picks the tokens for sparse attention: the best of products of two activations."""
    for launch in graph.launches:
        if launch.kernel.op != "TopKV2" or not launch.glue or not launch.path:
            continue
        members = {launch.kernel.index}
        _absorb_before(graph, members, launch.path, ("vector", "cube", "mix"))
        if any(graph.kernel(m).engine == "cube" for m in members):
            yield Group(frozenset(members), "LightningIndexer", launch.kernel.index)


# --- routers ---------------------------------------------------------------------------------------------------------


def _gating(graph: Graph) -> Iterator[Group]:
    """From the scores of a router, which are the product with a weight, to each token's experts and their weights."""
    picks = [k for k in graph.launches if k.kernel.op == "TopKV2" and k.glue and k.path]
    inside: dict[tuple[int, ...], list[int]] = {pick.path: [] for pick in picks}
    for launch in graph.launches:
        for depth in range(1, len(launch.path) + 1):
            if launch.path[:depth] in inside:
                inside[launch.path[:depth]].append(launch.kernel.index)
    taken: set[int] = set()
    for pick in picks:
        if pick.kernel.index in taken:
            continue
        members = _scoring(graph, pick, inside[pick.path])
        taken |= members
        sources = {i for m in members for i in graph.kernel(m).inputs} - members
        if any(graph.kernel(i).engine == "cube" and graph.kernel(i).weights for i in sources):
            yield Group(frozenset(members), "MoeGatingTopK", max(members))


def _scoring(graph: Graph, pick: Launch, inside: list[int]) -> set[int]:
    """The small element-wise kernels of the call before and after a top-k."""
    limit = _ROUTER_LIMIT * sum(read.bytes for read in pick.reads.values())

    def belongs(index: int) -> bool:
        launch = graph.launches[index]
        small = launch.written <= limit and all(w.stored_bytes <= limit for w in launch.kernel.weights)
        return launch.glue and launch.kernel.engine == "vector" and small

    candidates = [i for i in inside if belongs(i)]
    members = {pick.kernel.index}
    for index in reversed(candidates):  # against the data flow
        if graph.consumers[index] & members and graph.kernel(index).op != "GatherV2":
            members.add(index)
    for index in candidates:
        after = any(i in members for i in graph.kernel(index).inputs)
        if after and index not in members and graph.is_convex(frozenset(members | {index})):
            members.add(index)
    return members


# --- pairs -----------------------------------------------------------------------------------------------------------


def _gated_activation(graph: Graph) -> Iterator[Group]:
    """An activation whose only reader multiplies it with another projection."""
    for launch in graph.launches:
        op = _ACTIVATIONS.get(launch.kernel.op)
        after = graph.consumers[launch.kernel.index]
        if op and launch.glue and len(after) == 1:
            (index,) = after
            product = graph.launches[index]
            if product.kernel.op == "Mul" and product.glue and len(product.kernel.inputs) > 1:
                yield Group(frozenset((launch.kernel.index, index)), op, index)


def _add_norm(graph: Graph) -> Iterator[Group]:
    """A norm of a sum that was just computed: the residual is added inside the norm."""
    for launch in graph.launches:
        if launch.kernel.op not in _NORMS or not launch.glue:
            continue
        for index in launch.kernel.inputs:
            add = graph.launches[index]
            if add.kernel.op == "Add" and add.glue and len(add.reads) > 1 and not add.kernel.weights:
                yield Group(frozenset((index, launch.kernel.index)), f"Add{launch.kernel.op}", launch.kernel.index)
                break
