"""Strategy `auto`: which scopes, and why, from the structure of the model and the traced step."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from models.paths import Names
from models.workload import Kernel
from pipeline.fusable import runs
from pipeline.record import Text
from pipeline.scope_spans import Calls
from pipeline.scope_strategies import STRATEGIES, Part, has_experts
from pipeline.superkernel_options import Options

# What speaks for and against each strategy, by the requirements.
PROS_AND_CONS: Mapping[str, Text] = {
    "attention": Text(
        "for a first try, or a model whose bottleneck is attention: little risk, easy to debug",
        "适合首次尝试或瓶颈在 Attention 的模型:风险小、易调试",
    ),
    "moe": Text(
        "for mixtures of experts: aimed at where the time goes, clear effect",
        "适合 MoE 架构模型:针对性强、效果明显",
    ),
    "decoder_layers": Text(
        "for simple models, or where it has worked before: largest scope and potential, harder to debug",
        "适合结构简单或已有成功案例的模型:融合范围最大、潜力最高,但调试难度较大",
    ),
    "chains": Text(
        "the longest runs of modules on one stream: as much as fuses without serialising streams, one scope each",
        "按流取最长的模块链:在不串行化多流的前提下融合最多",
    ),
    "auto": Text("chosen from the step: for best performance", "基于性能分析自动推荐:追求最优性能"),
    "custom": Text("first and last module named by hand: most freedom", "手动指定首尾模块:灵活性最高"),
}


@dataclass(frozen=True)
class Candidate:
    """One strategy on this step.

    Attributes:
        strategy: its name.
        scopes: number of scopes.
        launches_saved: kernels that follow another one in the same SuperKernel.
        longest: kernels of the longest SuperKernel.
        serialises: streams that used to overlap would run one after the other.
    """

    strategy: str
    scopes: int
    launches_saved: int
    longest: int
    serialises: bool

    @property
    def about(self) -> Text:
        """What speaks for and against the strategy."""
        return PROS_AND_CONS[self.strategy]

    def to_json(self, language: str = "en") -> dict[str, Any]:
        return {**asdict(self), "about": self.about.get(language)}


@dataclass(frozen=True)
class Choice:
    """What `auto` chose.

    Attributes:
        strategy: one of `scope_strategies.STRATEGIES`.
        why: the reason, with the figures.
        candidates: what it was chosen from.
    """

    strategy: str
    why: Text
    candidates: tuple[Candidate, ...]


def choose(names: Names, calls: Calls, options: Options) -> Choice:
    """The strategy that saves most launches without serialising streams; by the decision tree if none saves any."""
    tree = "moe" if has_experts(calls) else "attention"
    order = dict.fromkeys((tree, "attention", "moe", "chains", "decoder_layers"))
    found = [_candidate(s, STRATEGIES[s](names, calls), calls, options) for s in order]
    candidates = tuple(c for c in found if c.scopes)
    free = [c for c in candidates if c.launches_saved and not c.serialises]
    if not free:
        kind, kind_zh = ("a", "MoE 模型") if tree == "moe" else ("no", "非 MoE 模型")
        return Choice(
            tree,
            Text(
                f"{tree}: the step shows no scope that saves launches and keeps its streams apart; the model is {kind} "
                f"mixture of experts; {PROS_AND_CONS[tree].en}",
                f"{tree}:单步中没有既节省下发又不串行化多流的范围;{kind_zh};{PROS_AND_CONS[tree].zh}",
            ),
            candidates,
        )
    best = max(free, key=lambda c: c.launches_saved)  # the first of equals: the decision tree's
    others_en = "; ".join(_said(c) for c in candidates if c is not best)
    others_zh = ";".join(_said_zh(c) for c in candidates if c is not best)
    return Choice(
        best.strategy,
        Text(
            f"{_said(best)}, longest SuperKernel {best.longest} kernels: most launches saved without running streams "
            f"one after the other; {PROS_AND_CONS[best.strategy].en}. Against it: {others_en}",
            f"{_said_zh(best)},最长 SuperKernel 含 {best.longest} 个算子:在不串行化多流的前提下节省最多;"
            f"{PROS_AND_CONS[best.strategy].zh}。对比:{others_zh}",
        ),
        candidates,
    )


def serialises(run: Sequence[Kernel], options: Options) -> bool:
    """Whether one SuperKernel of these kernels takes away overlap of streams.

    `stream-fusion=1` keeps it only where one stream is pure Cube and the other pure Vector.
    """
    engines: dict[str, set[str]] = {}
    for kernel in run:
        engines.setdefault(kernel.stream, set()).add(kernel.engine)
    if len(engines) < 2:
        return False
    if dict(options).get("stream-fusion") != "1":
        return True
    kinds = list(engines.values())
    pure = all(kind in ({"cube"}, {"vector"}) for kind in kinds)
    return not (pure and len(kinds) == 2 and kinds[0] != kinds[1])


def _candidate(strategy: str, parts: Sequence[Part], calls: Calls, options: Options) -> Candidate:
    kernels = calls.workload.kernels
    found: list[list[int]] = []
    for part in parts:
        span = calls.span(part.first, part.last)
        found += runs(calls.members(span)) if span is not None else []
    return Candidate(
        strategy,
        len(parts),
        sum(len(run) - 1 for run in found),
        max((len(run) for run in found), default=0),
        any(serialises([kernels[i] for i in run], options) for run in found),
    )


def _said(candidate: Candidate) -> str:
    scopes = f"{candidate.scopes} scope{'' if candidate.scopes == 1 else 's'}"
    text = f"{candidate.strategy} saves {candidate.launches_saved} launches in {scopes}"
    return text + (" but serialises streams" if candidate.serialises else "")


def _said_zh(candidate: Candidate) -> str:
    text = f"{candidate.strategy} 以 {candidate.scopes} 个 scope 节省 {candidate.launches_saved} 次下发"
    return text + (",但会串行化多流" if candidate.serialises else "")
