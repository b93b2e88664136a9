"""From `recipe.superkernel` to scopes: which modules of this model, in which order, and what is wrong with them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from models.paths import AnyName, IndexSet, Match, Names, Pattern
from models.workload import Workload
from pipeline.recipe import Recipe
from pipeline.reporter import Reporter
from pipeline.scope_choice import Choice, choose
from pipeline.scope_remarks import remark, scope_key
from pipeline.scope_rows import Placed, ScopeMatch, scope_rows
from pipeline.scope_savings import with_savings
from pipeline.scope_spans import Calls
from pipeline.scope_strategies import STRATEGIES, Part
from pipeline.superkernel_options import Options, check_cores, merged
from pipeline.superkernel_section import CustomScope
from pipeline.target_resolver import Resolvable, ever, names_of_role_all
from transforms.plan import Scope

if TYPE_CHECKING:
    from pipeline.simulator.machine import Machine

_STRATEGY = "recipe.superkernel.strategy"
_NOT_THERE = {"attention": "attention", "moe": "a mixture of experts", "decoder_layers": "decoder layers"}


@dataclass(frozen=True)
class ScopeResolution:
    """What `recipe.superkernel` means for a model.

    Attributes:
        placed: in execution order.
        matches: one row per name.
        choice: what `auto` chose.
        strategy: the strategy in force; differs from the recipe's for `auto`.
    """

    placed: tuple[Placed, ...] = field(default=(), repr=False)
    matches: tuple[ScopeMatch, ...] = ()
    choice: Choice | None = None
    strategy: str = ""

    @property
    def scopes(self) -> tuple[Scope, ...]:
        return tuple(p.scope for p in self.placed)


def resolve_scopes(
    recipe: Recipe,
    loaded: Resolvable,
    names: Names,
    workload: Workload,
    report: Reporter,
    prefetches: Sequence[tuple[str, int]] = (),
    chosen: str | None = None,
    tiny: bool = False,
    machine: "Machine | None" = None,
) -> ScopeResolution:
    """Apply `recipe.superkernel` to a model.

    Args:
        recipe: as parsed.
        loaded: the model; its trace is `workload`.
        names: of the model.
        workload: one decode step.
        report: where problems go.
        prefetches: (target, event) of the plan's prefetches, to tell which are issued inside a scope.
        chosen: for `auto` on the tiny model: what was chosen at full size.
        tiny: nothing is remarked that was told at full size.
        machine: for the savings.
    """
    section = recipe.superkernel
    if not section.enabled:
        return ScopeResolution()
    if machine is not None:
        written = {"recipe.superkernel": section.options}
        written |= {scope.key: scope.options for scope in section.scopes if section.strategy == "custom"}
        for key, options in written.items():
            check_cores(report, f"{key}.options", options, (machine.cores, machine.vector_cores))
    resolver = _Resolver(recipe, loaded, names, Calls(workload), report, tiny)
    choice = None
    strategy = section.strategy
    if strategy == "auto":
        if chosen is None:
            choice = choose(names, resolver.calls, section.options)
            chosen = choice.strategy
        strategy = chosen
    if strategy == "custom":
        for scope in section.scopes:
            resolver.custom(scope)
    else:
        resolver.strategy(strategy)
    resolver.check_together()
    rows = scope_rows(resolver.placed, resolver.calls, names, resolver.skipped)
    if machine is not None and not tiny:
        rows = with_savings(rows, resolver.placed, resolver.calls, machine)
    if not tiny:
        remark(report, recipe, resolver.placed, rows, resolver.calls, names, prefetches)
    return ScopeResolution(tuple(resolver.placed), rows, choice, strategy)


class _Problems:
    """What is wrong with the scopes of one name: once per cause, with the number of layers."""

    def __init__(self, report: Reporter, key: str) -> None:
        self.report, self.key = report, key
        self.found: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def add(self, code: str, part: str, message: str, fix: str) -> None:
        self.found.setdefault((code, part), []).append((message, fix))

    def tell(self) -> None:
        for (code, part), said in self.found.items():
            message, fix = said[0]
            where = f" ({len(said)} layers)" if len(said) > 1 else ""
            self.report.error(code, f"{self.key}.{part}" if self.key else part, message + where, fix)


class _Resolver:
    """Resolves scopes name by name; problems go to the report, once per name and cause."""

    def __init__(
        self, recipe: Recipe, loaded: Resolvable, names: Names, calls: Calls, report: Reporter, tiny: bool
    ) -> None:
        self.recipe, self.loaded, self.names, self.calls = recipe, loaded, names, calls
        self.report, self.tiny = report, tiny
        self.placed: list[Placed] = []
        self.skipped: dict[str, int] = {}

    def strategy(self, strategy: str) -> None:
        """Scopes found by structure."""
        parts = STRATEGIES[strategy](self.names, self.calls)
        problems = _Problems(self.report, "")
        layers: dict[str, set[int | None]] = {}
        for part in parts:
            layers.setdefault(part.name, set()).add(part.layer)
            result = self._place(part, self.recipe.superkernel.options)
            if isinstance(result, Placed):
                self.placed.append(result)
            else:
                code, _, message, fix = result
                problems.add(code, _STRATEGY, f"strategy `{strategy}`: {message}", fix)
        problems.tell()
        for name, found in layers.items():
            self.skipped[name] = 0 if None in found else self.names.layer_count - len(found)
        if not parts:
            what = _NOT_THERE.get(strategy, strategy)
            role = self.loaded.deployment.role
            self.report.error(
                "no-match",
                _STRATEGY,
                f"strategy `{strategy}` covers nothing: no layer of this model has {what}"
                + (f" (role `{role}`)" if role != "all" else ""),
                "Choose another strategy, or name first and last module by strategy custom.",
            )

    def custom(self, scope: CustomScope) -> None:
        """Scopes named by the recipe."""
        problems = _Problems(self.report, scope.key)
        placed: list[Placed] = []
        skipped = 0
        for pattern, where in {scope.last: "last", scope.first: "first"}.items():  # equal ones: once
            self._check_indices(pattern, where, problems)
        for i in range(self.names.layer_count) if scope.first.uses_layer else (None,):
            matches = self.names.expand(scope.first, i)
            skipped += not matches
            numbers: Counter[int | None] = Counter()
            for match in matches:
                last = self._last(scope, match, i if i is not None else match.i)
                if last is None:
                    skipped += 1
                    continue
                several = sum(other.i == match.i for other in matches) > 1
                label = self._label(scope, match, numbers[match.i] if several else None, problems)
                numbers[match.i] += 1
                layer = match.i if scope.first.uses_layer or self._any_layer(scope.first, match) else None
                result = self._place(
                    Part(scope.name, label, match.fqn, last, layer),
                    merged(self.recipe.superkernel.options, scope.options),
                )
                if isinstance(result, Placed):
                    placed.append(result)
                else:
                    problems.add(*result)
        problems.tell()
        self.placed += placed
        self.skipped[scope.name] = skipped
        if not placed and not problems.found:
            self._nothing_matched(scope)

    def _last(self, scope: CustomScope, match: Match, i: int | None) -> str | None:
        """The last module of a scope; of several that a role names, the next that is called."""
        if scope.last == scope.first:
            return match.fqn
        found = self.names.meant(scope.last, i, match.captures)
        calls = self.calls.workload.calls
        behind = [
            n for n in found if n in calls and match.fqn in calls and calls[n][0].exit >= calls[match.fqn][0].exit
        ]
        return next(iter(behind or found), None)

    def _label(self, scope: CustomScope, match: Match, number: int | None, problems: "_Problems") -> str:
        """The label of one scope: with the layer where the path leaves it open, numbered within the layer."""
        label = scope.label
        if "{i}" in label and match.i is None:
            message = f"label `{label}` has {{i}}, but `{self.names.relative(match.fqn)}` lies in no decoder layer"
            problems.add("bad-label", "label", message, "Leave {i} out.")
        if "{i}" not in label and self._any_layer(scope.first, match):
            label += "_{i}"
        label = label.replace("{i}", str(match.i))
        return label if number is None else f"{label}_{number}"

    def _any_layer(self, pattern: Pattern, match: Match) -> bool:
        """Whether a `*` or `[...]` of the pattern stands for the index of the layer."""
        if match.i is None:
            return False
        place = (
            0 if pattern.role else match.fqn[len(self.names.layer_list) + 1 :].count(".")
        )  # of the index, from the end
        return place < len(pattern.segments) and isinstance(pattern.segments[-1 - place], AnyName | IndexSet)

    def _check_indices(self, pattern: Pattern, part: str, problems: "_Problems") -> None:
        """Refuse indices of a set that exist nowhere (`[0-70]` of 61 layers)."""
        layers = range(self.names.layer_count) if pattern.uses_layer else (None,)
        for place, segment in enumerate(pattern.segments):
            if self.tiny or not isinstance(segment, IndexSet) or pattern.role is not None:
                continue
            head = Pattern(pattern.text, (*pattern.segments[:place], AnyName()))
            names = {m.fqn.rpartition(".")[2] for i in layers for m in self.names.expand(head, i)}
            there = sorted(int(name) for name in names if name.isdecimal())
            lost = sorted(segment.indices.difference(there))
            if there and lost:
                span = f"{lost[0]} to {lost[-1]}" if len(lost) > 1 else str(lost[0])
                message = f"`{pattern.text}` names what does not exist: {span}; there are {there[0]} to {there[-1]}"
                problems.add("no-match", part, message, "Leave it out of the set.")

    def _place(self, part: Part, options: Options) -> Placed | tuple[str, str, str, str]:
        """The scope, or (code, key, message, fix) of what is wrong with it."""
        first, last = (self.names.relative(n, part.layer) for n in (part.first, part.last))
        for which, fqn, label in (("first", part.first, first), ("last", part.last, last)):
            if fqn not in self.names.modules:
                owner = self.names.relative(fqn.rpartition(".")[0], part.layer)
                return "not-a-module", which, f"`{label}` is a parameter, not a module", f"Name `{owner}`."
            calls = self.calls.workload.calls.get(fqn, ())
            if not calls:
                near = [self.names.relative(n, part.layer) for n in self.calls.children(self._called_parent(fqn))]
                fix = f"Called nearby: {', '.join(f'`{n}`' for n in near[:6])}." if near else ""
                return "never-called", which, f"`{label}` is a module, but it is never called in decode", fix
            if len(calls) > 1:
                message = f"`{label}` is called {len(calls)} times in a step: where the scope is, is not clear"
                return "called-repeatedly", which, message, "Name modules that are called once."
        begin, end = self.calls.one(part.first), self.calls.one(part.last)
        assert begin is not None and end is not None
        if self.calls.caller(part.first) != self.calls.caller(part.last):
            callers = [self.calls.caller(n) for n in (part.first, part.last)]
            who = [f"`{self.names.relative(c, part.layer)}`" if c else "the whole model" for c in callers]
            return (
                "not-in-one-forward",
                "last",
                f"`{first}` is called by {who[0]}, `{last}` by {who[1]}: a scope begins and ends in one forward",
                "Name two modules that the same forward calls.",
            )
        if end.enter < begin.enter:
            message = f"`{last}` is called before `{first}`: the first module of the scope comes after its last"
            return "first-after-last", "first", message, "Swap `first` and `last`."
        span = self.calls.span(part.first, part.last)
        if span is None or not span.kernels:
            message = f"`{first}` to `{last}` launches no kernel in decode: the scope is empty"
            return "empty-scope", "first", message, "Choose modules that compute something."
        return Placed(Scope(part.label, options, part.first, part.last), part, span)

    def _called_parent(self, fqn: str) -> str:
        parent = fqn.rpartition(".")[0]
        while parent and parent not in self.calls.workload.calls:
            parent = parent.rpartition(".")[0]
        return parent

    def _nothing_matched(self, scope: CustomScope) -> None:
        part, pattern = ("last", scope.last) if ever(self.names, scope.first) else ("first", scope.first)
        if self.tiny:
            self.report.warn(
                "not-in-tiny",
                scope.key,
                f"the tiny model has {self.names.layer_count} layers and none for scope `{scope.name}`: the numerics "
                "rung does not exercise it",
            )
            return
        role = self.loaded.deployment.role
        if role != "all" and ever(names_of_role_all(self.loaded), pattern):
            self.report.warn(
                "role-skipped",
                f"{scope.key}.{part}",
                f"skipped: role `{role}` does not have `{pattern.text}`",
                "Leave the scope to a deployment of role `all` or of the other side.",
            )
            return
        if ever(self.names, pattern):
            self.report.error(
                "no-match",
                f"{scope.key}.last",
                f"`{scope.first.text}` and `{scope.last.text}` never exist for the same layer",
                "Check the layer arithmetic.",
            )
            return
        reason, near = self.names.explain_miss(pattern, parameters=False)
        fix = f"Did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else ""
        self.report.error("no-match", f"{scope.key}.{part}", reason, fix)

    def check_together(self) -> None:
        """Bring the scopes into execution order; refuse overlaps and labels used twice."""
        self.placed.sort(key=lambda p: (p.span.enter, p.span.exit))
        told: set[tuple[str, str, str]] = set()
        open_until: Placed | None = None
        labels: dict[str, Placed] = {}
        for placed in self.placed:
            if open_until is not None and open_until.span.overlaps(placed.span):
                pair = (open_until.part.name, placed.part.name)
                if ("overlap", *pair) not in told:
                    told.add(("overlap", *pair))
                    self.report.error(
                        "scopes-overlap",
                        scope_key(self.recipe, placed.part.name),
                        f"scopes `{open_until.scope.label}` ({self._said(open_until)}) and `{placed.scope.label}` "
                        f"({self._said(placed)}) overlap: a kernel can be in one scope only",
                        "End one before the other begins.",
                    )
            if open_until is None or placed.span.exit > open_until.span.exit:
                open_until = placed
            other = labels.setdefault(placed.scope.label, placed)
            pair = (other.part.name, placed.part.name)
            if other is not placed and ("label", *pair) not in told:
                told.add(("label", *pair))
                self.report.error(
                    "label-twice",
                    scope_key(self.recipe, placed.part.name),
                    f"two scopes have the label `{placed.scope.label}`: the compiler would take them for one",
                    "Give them different names, or labels with {i}.",
                )

    def _said(self, placed: Placed) -> str:
        first, last = (self.names.relative(n) for n in (placed.scope.first, placed.scope.last))
        return f"`{first}` to `{last}`" if first != last else f"`{first}`"
