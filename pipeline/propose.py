"""`propose`: the design proposal that is confirmed before any source is changed. Writes nothing."""

import hashlib
import re
import shlex
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from models.problems import Problem, RefusedError
from pipeline.environment import interpreter_problems
from pipeline.experiment import Prepared
from pipeline.scope_choice import PROS_AND_CONS
from pipeline.sizes_text import approximate_size
from pipeline.validate import setting

if TYPE_CHECKING:
    from pipeline.resolve import Resolution

_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)")
_POINT = re.compile(r"(self\.)?npu_prefetch\(|(with )?superkernel_scope\(")
_OPEN = re.compile(r"superkernel_scope\([^)]*\Z")
_PREFETCH_SWITCH = (
    "`enable_prefetch` of the configuration (default off) -> `config.enable_prefetch` -> each class's `__init__` "
    "(`self.enable_prefetch`) -> `forward`, where a call is made in decode only. The model's `__init__` refuses "
    "prefetch in a graph mode without multi-stream, and in an execution mode that has no prefetch."
)
_SCOPE_SWITCH = (
    "`enable_superkernel` of the configuration (default off) -> `config.enable_superkernel` -> each class's `__init__` "
    "(`self.enable_superkernel`) -> `forward`, where a scope is opened in decode only. The model's `__init__` refuses "
    "an execution mode without SuperKernel."
)
_PREFETCH_NEXT = (
    "Confirm or change it: another size (`recipe.prefetch.coefficient=0.5`), fewer targets "
    "(`recipe.prefetch.only=[...]`), another dependency (`recipe.prefetch.targets.NAME.dependency=...`)."
)
_SCOPE_NEXT = "Confirm or change the scopes: `recipe.superkernel.strategy=...`, or `custom` with scopes of your own."


def run_propose(prepared: Prepared, typed: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
    """The proposal as Markdown, and the same as data.

    Args:
        prepared: from `experiment.prepare`.
        typed: the overrides (and `--config-dir`) as the user typed them; the sweep that is proposed next keeps them.

    Raises:
        RefusedError: there is no source to change.
    """
    source = prepared.realisation.source if prepared.realisation else None
    if source is None:
        message = "transform=wrap changes no source, so there is no diff to propose"
        wrap = Problem("error", "no-source", message, "Use transform=source.", "transform")
        raise RefusedError([wrap] if prepared.realisation else interpreter_problems())
    name = source.name
    plan = prepared.resolution.plan
    points = insertion_points(source.diff)
    digest = patch_hash(plan.hash, source.diff, source.before)
    data = {
        "status": "ok",
        **setting(prepared),
        "patch_hash": digest,
        "plan": plan.to_json(),
        "files": [name],
        "insertion_points": [{"file": name, "line": line, "text": text} for line, text in points],
        "diff": source.diff,
        "problems": [p.to_json() for p in prepared.problems],
    }
    return _markdown(prepared, name, source.diff, points, digest, typed), data


def patch_hash(plan_hash: str, diff: str, *contents: str) -> str:
    """What a reviewer confirms: the plan, the diff, and the content of every file it touches."""
    digest = hashlib.sha256()
    for part in (plan_hash, diff, *contents):
        digest.update(hashlib.sha256(part.encode()).digest())
    return digest.hexdigest()[:16]


def insertion_points(diff: str) -> list[tuple[int, str]]:
    """(line in the new file, text) of every added `npu_prefetch` call and `superkernel_scope`."""
    points: list[tuple[int, str]] = []
    line, opened = 0, False
    for row in diff.splitlines():
        hunk = _HUNK.match(row)
        if hunk:
            line = int(hunk.group(1))
        elif row.startswith("+++") or row.startswith("---"):
            continue
        elif row.startswith(("+", " ")):
            text = row[1:].strip()
            if opened:  # a scope over several lines
                points[-1] = (points[-1][0], f"{points[-1][1]}{'' if points[-1][1].endswith('(') else ' '}{text}")
            elif row.startswith("+") and _POINT.match(text):
                points.append((line, text))
            opened = bool(points) and (opened or row.startswith("+")) and _OPEN.search(points[-1][1]) is not None
            line += 1
    return points


def _markdown(
    prepared: Prepared, name: str, diff: str, points: list[tuple[int, str]], digest: str, typed: Sequence[str]
) -> str:
    experiment, resolution = prepared.experiment, prepared.resolution
    where = ", ".join(f"{key} `{value}`" for key, value in setting(prepared).items())
    scopes = bool(resolution.plan.scopes)
    prefetch = bool(resolution.plan.prefetch) or not scopes
    levers = [*(["weight prefetch"] * prefetch), *(["SuperKernel scopes"] * scopes)]
    sweeps = [
        *([("recipe.prefetch.coefficient", _steps(experiment.recipe.prefetch.coefficient))] * prefetch),
        *([("recipe.superkernel.strategy", "attention,moe,decoder_layers,auto")] * scopes),
    ]
    warnings = [f"- {p.message}{' ' + p.fix if p.fix else ''}" for p in prepared.problems]
    lines = [
        f"# Proposal: {' and '.join(levers)} for {experiment.model.name}",
        "",
        f"For {where}. Patch hash `{digest}` (plan, diff and content of every touched file).",
        "Nothing was written. Sizes are exact, windows are modelled; no NPU was used.",
        "",
        *(_targets(resolution) if prefetch else ()),
        *(_scopes(resolution) if scopes else ()),
        "## Files that change",
        "",
        f"- `{name}`",
        "",
        "## How the switch gets to the calls",
        "",
        *([_PREFETCH_SWITCH] if prefetch else ()),
        *([_SCOPE_SWITCH] if scopes else ()),
        f"Declared here: exe_mode `{experiment.exe_mode}`, multi_stream {experiment.deployment.multi_stream}.",
        "",
        "## Insertion points",
        "",
        *(f"- `{name}:{line}`: `{text}`" for line, text in points),
        "",
        *(["## To keep in mind", "", *warnings, ""] if warnings else []),
        "## Diff",
        "",
        "```diff",
        diff.rstrip("\n"),
        "```",
        "",
        "## Next",
        "",
        *([_PREFETCH_NEXT] if prefetch else ()),
        *([_SCOPE_NEXT] if scopes else ()),
        "Then sweep:",
        "",
        "```",
        *(
            _sweep(
                typed or [f"recipe={experiment.recipe.name}", f"deployment={experiment.deployment.name}"], key, steps
            )
            for key, steps in sweeps
        ),
        "```",
    ]
    return "\n".join(lines) + "\n"


def _targets(resolution: "Resolution") -> list[str]:
    return [
        "## Targets, sizes and dependencies",
        "",
        "| target | weight | starts after | layers | whole weight | max_size | size from | window, modelled |",
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {m.target} | `{m.weight}` | `{m.dependency}` | {m.matched} | {approximate_size(m.theoretical_size)} "
            f"| {approximate_size(m.max_size)} | {_basis(m)} | {_window(m)} |"
            for m in resolution.matches
        ),
        "",
        f"{len(resolution.plan.prefetch)} calls per decode step, none in prefill; at most "
        f"{approximate_size(resolution.in_flight)} copied and not yet read.",
        "",
    ]


def _scopes(resolution: "Resolution") -> list[str]:
    found = resolution.scopes
    why = [f"Chosen by `auto`: {found.choice.why.en}.", ""] if found.choice is not None else []
    return [
        f"## SuperKernel scopes, strategy {found.strategy}",
        "",
        f"{PROS_AND_CONS[found.strategy].en.capitalize()}.",
        "",
        *why,
        "| scope | first | last | scopes | kernels | launches saved | options |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {r.name} | `{r.first}` | `{r.last}` | {r.matched} | {r.kernels} | {r.launches_saved} "
            f"| {f'`{r.options}`' if r.options else 'none'} |"
            for r in resolution.scope_matches
        ),
        "",
    ]


def _steps(start: Decimal) -> str:
    """The specification's 0.5 -> 0.7 -> 1.0, or the same steps from a recipe that starts lower."""
    return "0.5,0.7,1.0" if start >= Decimal("0.5") else f"{start},{start * 2},{min(start * 4, Decimal(1))}"


def _sweep(typed: Sequence[str], key: str, steps: str) -> str:
    kept = [word for word in typed if word.lstrip("+").partition("=")[0] not in (key, "format")]
    return shlex.join(["npu-recipes", "-m", *kept, f"{key}={steps}"])


def _basis(match: Any) -> str:
    if not match.matched:
        return "skipped"
    return "explicit size" if match.coefficient is None else f"coefficient {match.coefficient}"


def _window(match: Any) -> str:
    return "" if match.window is None else f"{match.window.value:.1f} us"
