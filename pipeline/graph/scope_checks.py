"""Compares the SuperKernel scopes of a lowered graph with the plan. Pure functions on plain data."""

from collections import Counter
from collections.abc import Mapping, Sequence

from pipeline.fusable import why_not
from pipeline.graph.findings import Finding
from pipeline.graph.graph import INPUTS, RESHAPES, Graph, Node
from pipeline.graph.kernels import kernels_of
from pipeline.graph.notes import Note
from pipeline.graph.operators import differing, field_name
from transforms.plan import Plan, Scope

_END = frozenset({"NetOutput", "output"})


def check_scopes(graph: Graph, plan: Plan, planned: Mapping[str, Sequence[str]]) -> tuple[list[Finding], list[Note]]:
    """Every kernel from a scope's first to its last module carries its label and options, and none outside does.

    Args:
        graph: lowered.
        plan: with the scopes.
        planned: label of each scope -> operators of the kernels that the workload has inside.

    Returns:
        Findings, which fail the rung: `scope-missing`, `scope-order`, `scope-open` (a kernel inside without the
        label), `scope-kernels` (other kernels inside than planned), `scope-outside`, `scope-options`,
        `scope-unplanned`. And notes, which do not: `scope-split`, `prefetch-in-scope`.
    """
    findings: list[Finding] = []
    notes: list[Note] = []
    inside: dict[str, str] = {}  # node -> label
    kernels = {node.name for node in kernels_of(graph).nodes}
    for scope in plan.scopes:
        span, problem = _span(graph, scope)
        findings += [problem] if problem else []
        inside |= dict.fromkeys((node.name for node in span), scope.label)
        findings += _check_inside(scope, span, check_options=graph.kind == "ge")
        if problem is None:
            inner = [node for node in span if node.name in kernels]
            findings += _check_kernels(scope, inner, planned[scope.label], graph.kind)
        notes += _notes(graph, scope, span, kernels)
    labels = {scope.label: scope for scope in plan.scopes}
    for node in graph.nodes:
        label = node.attrs.get("scope")
        if label and inside.get(node.name) != label and _is_kernel(node):
            findings.append(_outside(node, label, labels))
    return findings, notes


def count_scoped(graph: Graph) -> int:
    """Kernels that carry a scope, counted as a workload counts them."""
    return sum(bool(node.attrs.get("scope")) for node in kernels_of(graph).nodes)


def describe(scope: Scope) -> str:
    """`scope attn_0 (model.layers.0.self_attn .. model.layers.0.o_proj)`."""
    return f"scope {scope.label} ({scope.first} .. {scope.last})"


def _span(graph: Graph, scope: Scope) -> tuple[Sequence[Node], Finding | None]:
    """The nodes made from entering the first to leaving the last module, or what is wrong with these two."""
    entered = [m.after for m in graph.marks if (m.module, m.port) == (scope.first, "input")]
    left = [m.after for m in graph.marks if (m.module, m.port) == (scope.last, "output")]
    for fqn, found in ((scope.first, entered), (scope.last, left)):
        if not found:
            return (), Finding("scope-missing", describe(scope), f"the lowered step does not call {fqn}")
    begin = graph.position[entered[0]] + 1 if entered[0] else 0
    end = graph.position[left[-1]] + 1
    if end <= begin:
        message = f"{scope.last} ends before {scope.first} begins"
        return (), Finding("scope-order", describe(scope), message)
    return [node for node in graph.nodes[begin:end] if node.op not in INPUTS], None


def _check_inside(scope: Scope, span: Sequence[Node], check_options: bool) -> list[Finding]:
    findings = []
    bare = [node for node in span if _is_kernel(node) and node.attrs.get("scope") != scope.label]
    if bare:
        first = bare[0]
        carries = f"scope {first.attrs['scope']}" if first.attrs.get("scope") else "no scope"
        message = (
            f"{len(bare)} kernels between its first and last module do not carry it, first {_said(first)}: {carries}"
        )
        findings.append(Finding("scope-open", describe(scope), message))
    wanted = ":".join(f"{name}={value}" for name, value in scope.options)
    scoped = [node for node in span if check_options and node.attrs.get("scope") == scope.label]
    for node in scoped:
        found = str(node.attrs.get("options") or "")
        if found != wanted:
            message = f"{_said(node)} has options {found or 'none'}, planned {wanted or 'none'}"
            findings.append(Finding("scope-options", describe(scope), message))
            break  # they come from one call: the others have the same
    return findings


def _check_kernels(scope: Scope, inner: Sequence[Node], planned: Sequence[str], kind: str) -> list[Finding]:
    missing, extra = differing(planned, (field_name(node.op) for node in inner), kind)
    if not missing and not extra:
        return []
    said = [f"{_counted(extra)} not planned"] * bool(extra) + [f"{_counted(missing)} missing"] * bool(missing)
    first = next((node for node in inner if field_name(node.op) in extra), None)
    where = f" (of {field_name(first.op)} the first inside is {first.name})" if first else ""
    message = (
        f"{len(inner)} kernels between its first and last module, {len(planned)} planned: {'; '.join(said)}{where}"
    )
    return [Finding("scope-kernels", describe(scope), message)]


def _counted(operators: Counter[str]) -> str:
    return ", ".join(f"{count} x {op}" for op, count in sorted(operators.items()))


def _notes(graph: Graph, scope: Scope, span: Sequence[Node], kernels: set[str]) -> list[Note]:
    notes = []
    by_name: dict[str, list[Node]] = {}
    for node in span:
        if node.name in kernels and node.attrs.get("scope"):  # not what is folded
            by_name.setdefault(field_name(node.op), []).append(node)
    for op, nodes in by_name.items():
        if why := why_not(op):
            message = f"{len(nodes)} {op} inside ({why}), first {nodes[0].name}: the scope may be cut there"
            notes.append(Note("scope-split", describe(scope), message, scope, op, why, len(nodes)))
    copies = [node for node in span if node.op == graph.prefetch_op and node.attrs.get("scope")]
    if copies:
        message = f"{len(copies)} prefetches inside, first {copies[0].name}"
        notes.append(Note("prefetch-in-scope", describe(scope), message, scope, "prefetch", "", len(copies)))
    return notes


def _outside(node: Node, label: str, labels: Mapping[str, Scope]) -> Finding:
    if label not in labels:
        return Finding("scope-unplanned", "", f"{_said(node)} carries scope {label}, which the plan does not have")
    message = f"{_said(node)} carries it, but is not between its first and last module"
    return Finding("scope-outside", describe(labels[label]), message)


def _is_kernel(node: Node) -> bool:
    """Whether the node is more than an input, a constant, a change of shape, an event or a copy into L2."""
    if "record" in node.attrs or "wait" in node.attrs or "max_size" in node.attrs:
        return False
    return node.op not in INPUTS | RESHAPES | _END


def _said(node: Node) -> str:
    return f"{node.name} ({node.op})"
