"""Whether two profiles can be compared: what forbids it is refused, what weakens it is told."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from models.problems import Problem
from pipeline.analysis.places import kernel_ref
from pipeline.comparison.changes import Measured
from pipeline.comparison.measure import memory_bound
from pipeline.comparison.pairing import Pairs, is_super_kernel
from pipeline.comparison.shift import rank_cut
from pipeline.comparison.side import Side
from pipeline.comparison.words import gain_text
from pipeline.sizes_text import approximate_size

# Below this share of the weights read by both, it is another model or deployment.
_SAME_WEIGHTS = 0.8
# Other kernels than the baseline's above this share are told.
_OTHER_KERNELS = 0.02
_SHOWN = 5
# The kernels that do not wait for memory may change by this, %, before drift is told.
_DRIFT = 1.0


def forbidding(before: Side, after: Side, pairs: Pairs) -> list[Problem]:
    """Another model, deployment or batch: times of such steps say nothing about a change of the code."""
    if before.profile.files and before.profile.files == after.profile.files:
        message = "both are the same file"
        return [_error("same-profile", message, "Give the profile without the change first, then the one with it.")]
    problems = []
    weights = [_weights(side) for side in (before, after)]
    paired = sum((weights[0] & weights[1]).values())
    total = max(sum(w.values()) for w in weights)
    fused = any(is_super_kernel(side, k) for side in (before, after) for k in range(len(side)))
    if total and paired < _SAME_WEIGHTS * total and not fused:
        words = []
        for name, only in (
            ("the baseline", weights[0] - weights[1]),
            ("the optimised profile", weights[1] - weights[0]),
        ):
            words += [f"only {name} has {count} x {_read(*what)}" for what, count in only.most_common(1)]
        message = f"only {paired} of {total} MatMuls of a step read the same weights in both: {'; '.join(words)}"
        fix = "Profile the same model with the same layers and parallel sizes, once without and once with the change."
        problems.append(_error("other-model", message, fix))
    elif not total and len(pairs.left) < _SAME_WEIGHTS * max(len(before), len(after)):
        message = f"only {len(pairs.left)} of {len(before)} and {len(after)} kernels are the same in both"
        problems.append(_error("other-model", message, "Profile the same model once without and once with the change."))
    rows = before.phase.rows, after.phase.rows
    if not problems and None not in rows and rows[0] != rows[1]:
        message = f"MatMuls have {rows[0]} rows in the baseline and {rows[1]} in the optimised profile"
        fix = "Profile both with the same batch size and the same number of speculative tokens."
        problems.append(_error("other-batch", message, fix))
    return problems


def weakening(before: Side, after: Side, pairs: Pairs) -> list[Problem]:
    """What the reader must know beside the figures."""
    problems = []
    ranks = before.profile.rank, after.profile.rank
    if ranks[0] != ranks[1]:
        names = ["no rank" if r is None else f"rank {r}" for r in ranks]
        message = f"{names[0]} of the baseline is compared with {names[1]} of the optimised run"
        problems.append(_warn("different-ranks", message, "Choose one that both have with analysis.rank=N."))
    if before.profile.kind != after.profile.kind:
        message = f"the profiles were captured differently ({before.profile.kind}, {after.profile.kind})"
        problems.append(
            _warn("different-kinds", f"{message}: metrics cost kernels different times", "Capture both alike.")
        )
    cores = _cores(before, after, pairs)
    if cores:
        fix = "Was it the same device, with the same core limits of its streams?"
        problems.append(_warn("different-cores", f"kernels run on other numbers of cores: {cores}", fix))
    apart = len(pairs.only_left) + len(pairs.only_right)
    if apart > _OTHER_KERNELS * max(len(before), len(after)):
        lists = (("the baseline", before, pairs.only_left), ("the optimised step", after, pairs.only_right))
        words = [f"{len(found)} only in {name} ({_names(side, found)})" for name, side, found in lists if len(found)]
        message = f"kernels of a step differ: {'; '.join(words)}. They count in the step, and in no pair"
        problems.append(_warn("different-kernels", message))
    if len(pairs.copies_before):
        message = f"the baseline has {len(pairs.copies_before)} copies of prefetches: it is no step without prefetch"
        problems.append(_warn("baseline-prefetches", message, "Is the order BASELINE OPTIMISED?"))
    if rank_cut(before.steps, after.steps) is None:
        message = f"{before.steps} and {after.steps} steps are too few: differences by chance can't be excluded"
        fix = "Profile at least 5 steps of each after the first one; more give narrower intervals."
        problems.append(_warn("too-few-steps", message, fix))
    return problems


def drift(found: Measured) -> list[Problem]:
    """The runs differ where a prefetch changes nothing."""
    steady = found.steady
    gain = steady.faster if steady is not None else None
    if steady is None or gain is None or gain.low is None or gain.high is None:
        return []
    if gain.low <= 0 <= gain.high or abs(gain.value) < _DRIFT:
        return []
    message = (
        f"kernels that do not wait for memory changed too, {gain_text(gain)} ({steady.calls} a step): the runs differ "
        "in more than the copies (clock, load, version), or copies disturb these kernels"
    )
    fix = "Repeat both runs in turn (off on on off), or use run_on_npu.py, which interleaves them."
    return [_warn("drift", message, fix)]


def unknown_targets(before: Side, wanted: Sequence[str]) -> list[Problem]:
    """Labels of `compare.targets` that no memory-bound target of the baseline has."""
    known = list(dict.fromkeys(kernel_ref(before.sequence, k).label for k in memory_bound(before)))
    return [
        Problem(
            "error",
            "no-such-target",
            f"the baseline has no memory-bound target `{label}`",
            f"There are: {', '.join(known) or 'none'}.",
            "compare.targets",
        )
        for label in wanted
        if label not in known
    ]


def _weights(side: Side) -> Counter[tuple[str, int]]:
    """How often a step reads a weight of which size: (kind, bytes) -> kernels."""
    step = side.sequence
    sizes = step.column("weight_bytes")
    return Counter(
        (step.kinds[k].name, int(sizes[k])) for k in np.flatnonzero(sizes > 0).tolist() if step.kinds[k].target
    )


def _read(kind: str, size: int) -> str:
    return f"{kind.replace('_', ' ')} of {approximate_size(size)}"


def _cores(before: Side, after: Side, pairs: Pairs) -> str:
    """Paired kernels with another number of blocks, in words; "" if they are few."""
    blocks = [
        side.profile.kernels["block_dim"].fill_null(0).to_numpy()[side.sequence.frame["row"].to_numpy()[positions]]
        for side, positions in ((before, pairs.left), (after, pairs.right))
    ]
    other = (blocks[0] != blocks[1]) & (blocks[0] > 0) & (blocks[1] > 0)
    if other.sum() <= _OTHER_KERNELS * len(other):
        return ""
    seen = Counter(
        (before.sequence.ops[k], int(a), int(b))
        for k, a, b in zip(pairs.left[other].tolist(), blocks[0][other], blocks[1][other], strict=True)
    )
    return ", ".join(f"{op} {a} -> {b}" for (op, a, b), _ in seen.most_common(3))


def _names(side: Side, kernels: np.ndarray) -> str:
    counts = Counter(side.sequence.ops[k] or side.names[k] for k in kernels.tolist())
    more = ", ..." if len(counts) > _SHOWN else ""
    return ", ".join(f"{count} {name}" for name, count in counts.most_common(_SHOWN)) + more


def _error(code: str, message: str, fix: str) -> Problem:
    return Problem("error", code, message, fix)


def _warn(code: str, message: str, fix: str = "") -> Problem:
    return Problem("warning", code, message, fix)
