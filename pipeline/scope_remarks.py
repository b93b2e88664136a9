"""What a legal scope should be told: prefetches inside, what cuts it, streams that it serialises, graph breaks."""

from collections.abc import Sequence

from models.paths import Names
from pipeline.graph_breaks import graph_breaks
from pipeline.recipe import Recipe
from pipeline.reporter import Reporter
from pipeline.scope_rows import Placed, ScopeMatch, by_name
from pipeline.scope_spans import Calls


def scope_key(recipe: Recipe, name: str) -> str:
    """The key that a scope comes from."""
    return f"recipe.superkernel.{f'scopes.{name}' if recipe.superkernel.strategy == 'custom' else 'strategy'}"


def remark(
    report: Reporter,
    recipe: Recipe,
    placed: Sequence[Placed],
    rows: Sequence[ScopeMatch],
    calls: Calls,
    names: Names,
    prefetches: Sequence[tuple[str, int]],
) -> None:
    """Add warnings, and errors for graph breaks, to the report.

    Args:
        report: where they go.
        recipe, placed, rows: the scopes.
        calls, names: the step and the model.
        prefetches: (target, event) of the plan's prefetches.
    """
    members = by_name(placed)
    for row in rows:
        key = scope_key(recipe, row.name)
        _breaks(report, key, row, members[row.name], calls, names)
        _copies(report, key, row, members[row.name], prefetches)
        _cuts(report, key, row)
        if row.serialises:
            report.warn(
                "streams-serialised",
                key,
                f"scope `{row.name}` fuses kernels of streams {', '.join(row.streams)} into one: they run one after "
                "the other where they used to overlap (stream-fusion=1 helps only where one stream is pure Cube and "
                "the other pure Vector)",
                "Use one scope per stream (strategy custom, or auto).",
            )


def _copies(
    report: Reporter, key: str, row: ScopeMatch, members: Sequence[Placed], prefetches: Sequence[tuple[str, int]]
) -> None:
    inside = {target: None for p in members for target, event in prefetches if p.span.holds(event)}
    if inside:
        report.warn(
            "prefetch-in-scope",
            key,
            f"prefetches are issued inside scope `{row.name}` (targets {', '.join(inside)}): it is not public whether "
            "a copy may start before the SuperKernel that holds its dependency ends",
            "Measure both levers together and alone; end the scope at the dependency if the copies come late.",
        )


def _cuts(report: Reporter, key: str, row: ScopeMatch) -> None:
    if row.launches_saved == 0:
        report.warn(
            "nothing-fuses",
            key,
            f"scope `{row.name}` fuses nothing: no two fusable kernels follow each other in it",
            "Choose a larger scope, or leave it out.",
        )
    elif row.cut_by:
        cuts = "; ".join(f"{count} {op} ({why})" for op, count, why in row.cut_by)
        report.warn(
            "scope-cut",
            key,
            f"scope `{row.name}` holds kernels that do not fuse, or not always: {cuts}; a SuperKernel ends there and "
            "the next begins",
            "Begin or end the scope there, or set the option strict-scope-check to see what the compiler says.",
        )


def _breaks(report: Reporter, key: str, row: ScopeMatch, members: Sequence[Placed], calls: Calls, names: Names) -> None:
    modules = [
        names.modules[fqn]
        for placed in members
        for fqn, found in calls.workload.calls.items()
        if fqn in names.modules and placed.span.enter <= found[0].enter < placed.span.exit
    ]
    for broken in graph_breaks(modules):
        report.error(
            "graph-break",
            key,
            f"scope `{row.name}` holds {broken.cls}, whose forward has no static graph: {broken.file}:{broken.line}: "
            f"{broken.what}",
            "Leave the module out of the scope, or rewrite it without the break.",
        )
