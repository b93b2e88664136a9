"""Compares the prefetches of a lowered graph with the plan, node by node. Pure functions on plain data."""

import bisect
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from pipeline.graph.findings import Finding
from pipeline.graph.graph import INPUTS, RESHAPES, Graph, Node
from transforms.plan import Plan, Prefetch

_SCOPE_EXIT = "air.scope_exit.default"  # there are as many of them as of the other half


def check_prefetches(graph: Graph, plan: Plan) -> list[Finding]:
    """Every planned prefetch is one node, as planned, and there are no others."""
    pairs, missing, unplanned = _pair(graph, plan)
    weights = _weight_inputs(graph)
    findings = [_missing(graph, entry) for entry in missing]
    findings += [_unplanned(graph, node) for node in unplanned]
    for entry, node in pairs:
        findings += _check_source(graph, entry, node)
        findings += _check_size(entry, node)
        findings += _check_dependency(graph, entry, node)
        findings += _check_target(graph, weights, entry, node)
    findings += _check_order(graph, pairs)
    if graph.kind == "ge":
        findings += _check_chain(graph)
    else:
        findings += _check_streams(graph, pairs) + _check_races(graph) + _check_operators(graph)
    return findings


def describe(entry: Prefetch) -> str:
    """`target router, layer 3 (model.layers.3.mlp.router.classifier.weight)`."""
    return f"target {entry.target}, layer {entry.layer} ({entry.weight})"


def _pair(graph: Graph, plan: Plan) -> tuple[list[tuple[Prefetch, Node]], list[Prefetch], list[Node]]:
    """Planned entries with the nodes that are meant for them: by weight, then by the best agreement, then in order."""
    left = list(graph.prefetches)
    pairs, missing = [], []
    for entry in plan.prefetch:
        of_weight = [node for node in left if entry.weight in _weights(graph, node)]
        if not of_weight:
            missing.append(entry)
            continue
        node = min(of_weight, key=lambda n: (_offset(n) != entry.offset) + (n.attrs.get("max_size") != entry.max_size))
        left.remove(node)
        pairs.append((entry, node))
    return pairs, missing, left


def _weight_inputs(graph: Graph) -> dict[str, list[Node]]:
    """FQN of every parameter -> the inputs of the graph that it is."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for alias in node.aliases:
            found.setdefault(alias, []).append(node)
    return found


def _weights(graph: Graph, node: Node) -> tuple[str, ...]:
    """The parameter that a prefetch reads, also if it does so through other nodes."""
    source = graph.by_name[node.inputs[0]]
    seen = {source.name}
    while source.inputs and source.inputs[0] not in seen:
        source = graph.by_name[source.inputs[0]]
        seen.add(source.name)
    return source.aliases


def _offset(node: Node) -> int:
    return int(node.attrs.get("offset") or 0)  # a Cmo from byte 0 carries no offset


def _missing(graph: Graph, entry: Prefetch) -> Finding:
    return Finding("missing", describe(entry), f"planned, but the graph has no {graph.prefetch_op} of this weight")


def _unplanned(graph: Graph, node: Node) -> Finding:
    weights = " = ".join(_weights(graph, node)) or _said(graph, node.inputs[0])
    return Finding("unplanned", "", f"{node.name} prefetches {weights}, which the plan does not, or not once more")


def _check_source(graph: Graph, entry: Prefetch, node: Node) -> list[Finding]:
    source = graph.by_name[node.inputs[0]]
    if entry.weight in source.aliases:
        return []
    text = f"{node.name} reads {_said(graph, source.name)}, made from the weight, instead of the weight itself"
    return [Finding("source", describe(entry), f"{text}: it may copy other memory (a `.data`, `.detach()` or view?)")]


def _check_size(entry: Prefetch, node: Node) -> list[Finding]:
    findings = []
    size, offset = node.attrs.get("max_size"), _offset(node)
    if size != entry.max_size:
        message = f"{node.name} has max_size {size}, planned {entry.max_size}"
        findings.append(Finding("size", describe(entry), message))
    if offset != entry.offset:
        findings.append(Finding("offset", describe(entry), f"{node.name} has offset {offset}, planned {entry.offset}"))
    if isinstance(size, int) and offset + size > entry.theoretical_size:
        message = f"{node.name} ends at byte {offset + size} of a weight of {entry.theoretical_size} bytes"
        findings.append(Finding("bounds", describe(entry), message))
    return findings


def _check_dependency(graph: Graph, entry: Prefetch, node: Node) -> list[Finding]:
    """The node waits for exactly the tensor that the plan names, and that tensor is computed in the step."""
    port = f"{entry.dependency}:{entry.port}"
    marks = [mark for mark in graph.marks if (mark.module, mark.port) == (entry.dependency, entry.port)]
    if not marks:
        return [Finding("dependency-not-called", describe(entry), f"the lowered step does not call {entry.dependency}")]
    found = [name for name in node.controls if graph.by_name[name].op != graph.prefetch_op]
    wanted = {graph.origin(mark.node).name for mark in marks}
    findings = []
    for name in found:
        if graph.origin(name).op in INPUTS:
            message = f"{node.name} waits for {_said(graph, name)}, an input of the step: that orders nothing"
            findings.append(Finding("dependency-is-input", describe(entry), message))
        elif graph.origin(name).name not in wanted:
            message = f"{node.name} waits for {_said(graph, name)}, planned {port} = {_said(graph, marks[0].node)}"
            findings.append(Finding("dependency", describe(entry), message))
    if not found:
        message = f"{node.name} waits for nothing, planned {port} = {_said(graph, marks[0].node)}"
        findings.append(Finding("dependency", describe(entry), message))
    elif graph.origin(marks[0].node).op in INPUTS and not findings:
        message = f"{port} is {_said(graph, marks[0].node)}, an input of the step"
        findings.append(Finding("dependency-is-input", describe(entry), message))
    return findings


def _check_target(graph: Graph, weights: Mapping[str, list[Node]], entry: Prefetch, node: Node) -> list[Finding]:
    """Every kernel that reads the weight comes after the prefetch, in program order and by what waits for what."""
    readers = [reader for source in weights.get(entry.weight, ()) for reader in graph.readers(source.name)]
    if not readers:
        return [Finding("unread", describe(entry), "no kernel of the lowered step reads this weight")]
    first = min(readers, key=lambda reader: graph.position[reader.name])
    if graph.must_wait(node.name, first.name):
        message = f"{node.name} can't start before {_said(graph, first.name)}, which reads the weight, has ended"
    elif graph.position[first.name] < graph.position[node.name]:
        message = f"{node.name} comes after {_said(graph, first.name)}, which reads the weight"
    else:
        return []
    return [Finding("late", describe(entry), message)]


def _check_order(graph: Graph, pairs: Sequence[tuple[Prefetch, Node]]) -> list[Finding]:
    """The nodes follow each other as in the plan, which is how they are executed: one copy after the other.

    As few as possible are blamed: those outside of the longest part that is in order.
    """
    places = [graph.position[node.name] for _, node in pairs]
    kept = _longest_rise(places)
    findings = []
    for i, (entry, node) in enumerate(pairs):
        if i in kept:
            continue
        before = max((k for k in kept if k < i), default=None)
        after = min((k for k in kept if k > i), default=None)
        if before is not None and places[before] > places[i]:
            said = f"{node.name} comes before {pairs[before][1].name} ({describe(pairs[before][0])}), planned after it"
        else:
            assert after is not None  # else it would have prolonged the rise
            said = f"{node.name} comes after {pairs[after][1].name} ({describe(pairs[after][0])}), planned before it"
        findings.append(Finding("order", describe(entry), said))
    return findings


def _longest_rise(values: Sequence[int]) -> set[int]:
    """Indices of a longest rising subsequence."""
    ends: list[int] = []  # ends[k]: index of the smallest value that ends a rise of k + 1 values
    previous: list[int | None] = []
    for i, value in enumerate(values):
        k = bisect.bisect_left([values[e] for e in ends], value)
        previous.append(ends[k - 1] if k else None)
        ends[k : k + 1] = [i]
    kept: set[int] = set()
    last = ends[-1] if ends else None
    while last is not None:
        kept.add(last)
        last = previous[last]
    return kept


def _check_chain(graph: Graph) -> list[Finding]:
    """GE copies in one chain: each node waits for the one before."""
    return [
        Finding("chain", "", f"{node.name} does not wait for {before.name}: the order of the copies is open")
        for before, node in itertools.pairwise(graph.prefetches)
        if before.name not in node.controls
    ]


def _check_streams(graph: Graph, pairs: Sequence[tuple[Prefetch, Node]]) -> list[Finding]:
    """npugraph_ex: all on one side stream, each behind an event after its dependency, joined before the step ends."""
    findings = []
    first_stream = next((n.attrs["stream"] for _, n in pairs if n.attrs.get("stream")), None)
    end = graph.nodes[-1].name
    for entry, node in pairs:
        stream = node.attrs.get("stream")
        if stream is None:
            message = f"{node.name} is on the main stream: npugraph_ex needs a stream of its own for prefetch"
            findings.append(Finding("stream", describe(entry), message))
            continue
        if stream != first_stream:
            message = f"{node.name} is on stream {stream}, others on {first_stream}: the order of the copies is open"
            findings.append(Finding("chain", describe(entry), message))
        for name in node.controls:
            if graph.origin(name).op not in INPUTS and not graph.must_wait(node.name, graph.origin(name).name):
                message = f"no event makes {node.name} wait for {_said(graph, name)}, which is on another stream"
                findings.append(Finding("event", describe(entry), message))
        if not graph.must_wait(end, node.name):
            message = f"the step ends without waiting for {node.name}: its stream is not joined (error 107025)"
            findings.append(Finding("join", describe(entry), message))
    return findings


def _check_races(graph: Graph) -> list[Finding]:
    """A kernel that reads a result of another stream waits for it: in npugraph_ex a data flow alone orders nothing."""
    findings = []
    for node in graph.nodes:
        if node.op in INPUTS | RESHAPES or node.op == graph.prefetch_op:
            continue
        for name in dict.fromkeys(node.inputs):
            maker = graph.origin(name)
            apart = maker.op not in INPUTS and maker.attrs.get("stream") != node.attrs.get("stream")
            if apart and not graph.must_wait(node.name, maker.name):
                message = (
                    f"no event makes {node.name} ({node.op}) wait for {_said(graph, maker.name)} of another stream"
                )
                findings.append(Finding("race", "", message))
    return findings


def _check_operators(graph: Graph) -> list[Finding]:
    """torchair's own operators exist for GE only: npugraph_ex ignores its scopes, and its kernels raise when run."""
    foreign = Counter(node.op for node in graph.nodes if node.op.startswith("air.") and node.op != _SCOPE_EXIT)
    return [
        Finding("ge-only", "", f"{count} {op} in the graph: torchair's, which npugraph_ex can't run")
        for op, count in foreign.items()
    ]


def _said(graph: Graph, name: str) -> str:
    """`MatMul_3 (MatMul)`, or for an input `arg7_1 (Data of model.lm_head.weight)`."""
    node = graph.by_name[name]
    if node.op in INPUTS:
        return f"{name} ({node.op} of {node.argument})" if node.argument else f"{name} ({node.op})"
    return f"{name} ({node.op})"
