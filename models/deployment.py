"""How a model is served: parallel sizes, quantisation, batch, context, streams and role."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from models.problems import Problem, raise_errors
from models.records import read_record

Role = Literal["all", "attention", "ffn"]
Quant = Literal["w16a16", "w8a8"]

PARALLEL_SIZES = (
    "attn_tp_size",
    "dense_tp_size",
    "moe_tp_size",
    "moe_ep_size",
    "o_proj_tp_size",
    "embed_tp_size",
    "lmhead_tp_size",
)


@dataclass(frozen=True)
class Deployment:
    """How one die takes part in serving the model.

    Attributes:
        name: the config group's option, e.g. `longcat_a3_ep128`.
        role: `all`, or one side of an attention / FFN disaggregated deployment.
        world_size: dies that serve this role together.
        attn_tp_size: dies that share the heads of one attention.
        dense_tp_size: dies that share one dense MLP.
        moe_tp_size: dies that share the intermediate dimension of an expert.
        moe_ep_size: dies that share the experts of one layer.
        o_proj_tp_size: dies that share one o_proj; equals `attn_tp_size` if that is above 1.
        embed_tp_size, lmhead_tp_size: dies that share the vocabulary.
        quant: `w16a16` (bf16) or `w8a8` (int8 weights and activations where the checkpoint has them).
        batch_size: sequences per die (per tensor-parallel group where its dies hold the same tokens).
        context_length: tokens in the KV cache of each sequence, this step's included.
        next_n: speculative tokens per sequence and step.
        acceptance: assumed share of the speculative tokens that are accepted; only throughput uses it.
        multi_stream: 0 off, 1 or 2 the model's side streams are on.
        core_limits: stream label -> [AIC cores, AIV cores] while several streams run.
        block_size: tokens per block of the paged KV cache.
        idle_us: host or peer time per step in which the die waits, us.
    """

    name: str
    role: Role = "all"
    world_size: int = 1
    attn_tp_size: int = 1
    dense_tp_size: int = 1
    moe_tp_size: int = 1
    moe_ep_size: int = 1
    o_proj_tp_size: int = 1
    embed_tp_size: int = 1
    lmhead_tp_size: int = 1
    quant: Quant = "w16a16"
    batch_size: int = 1
    context_length: int = 4096
    next_n: int = 0
    acceptance: float = 0.0
    multi_stream: Literal[0, 1, 2] = 0
    core_limits: dict[str, list[int]] = field(default_factory=dict)
    block_size: int = 128
    idle_us: float = 0.0

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], file: str | None = None) -> "Deployment":
        """Read and check a deployment.

        Args:
            mapping: the content of `conf/deployment/<name>.yaml`, overrides applied.
            file: the file it came from, for the problems.

        Raises:
            RefusedError: with every problem: unknown, missing and ill-typed keys, ranges, divisibility.
        """
        values, problems = read_record(cls, mapping, "deployment", file)
        problems += _range_problems(values, file)
        raise_errors(problems)
        values["core_limits"] = {k: list(v) for k, v in values.get("core_limits", {}).items()}
        return cls(**values)

    def tiny(self) -> "Deployment":
        """The same structure with small numbers: every size above 1 becomes 2, batch 2, context 64 in blocks of 16."""
        sizes = {name: min(getattr(self, name), 2) for name in (*PARALLEL_SIZES, "world_size")}
        return replace(self, **sizes, batch_size=2, context_length=64, block_size=16)

    @property
    def query_length(self) -> int:
        """Tokens per sequence in one decode step."""
        return 1 + self.next_n

    @property
    def tokens_per_step(self) -> float:
        """Expected output tokens of one decode step on this die."""
        return self.batch_size * (1 + self.acceptance * self.next_n)

    @property
    def quantised(self) -> bool:
        return self.quant == "w8a8"


def context_problems(deployment: Deployment, max_position_embeddings: int) -> list[Problem]:
    """A context that the model has no positions for."""
    if deployment.context_length <= max_position_embeddings:
        return []
    message = f"{deployment.context_length} tokens, but the model has {max_position_embeddings} positions"
    return [Problem("error", "bad-value", message, "Give fewer.", "deployment.context_length")]


def _range_problems(values: Mapping[str, Any], file: str | None) -> list[Problem]:
    problems = []

    def bad(name: str, message: str, fix: str = "") -> None:
        problems.append(Problem("error", "bad-value", message, fix, f"deployment.{name}", file))

    for name in (*PARALLEL_SIZES, "world_size", "batch_size", "context_length", "block_size"):
        if values.get(name, 1) < 1:
            bad(name, f"{values[name]} is not positive", "Give 1 or more.")
    if values.get("next_n", 0) < 0:
        bad("next_n", f"{values['next_n']} is negative", "Give 0 or more.")
    if not 0 <= values.get("acceptance", 0.0) <= 1:
        bad("acceptance", f"{values['acceptance']} is not between 0 and 1", "Give the share of accepted tokens.")
    if values.get("idle_us", 0.0) < 0:
        bad("idle_us", f"{values['idle_us']} is negative", "Give microseconds per step.")
    if values.get("context_length", 4096) < 1 + values.get("next_n", 0):
        bad("context_length", "the context is shorter than one step's tokens", "Give at least 1 + next_n.")
    for label, limit in values.get("core_limits", {}).items():
        whole = isinstance(limit, list | tuple) and len(limit) == 2 and all(type(n) is int and n > 0 for n in limit)
        if not whole:
            bad(f"core_limits.{label}", f"{limit!r} is not a pair of core counts", "Give [AIC cores, AIV cores].")
    world = values.get("world_size", 1)
    for name in PARALLEL_SIZES:
        size = values.get(name, 1)
        if size >= 1 and world >= 1 and world % size:
            bad(name, f"{size} does not divide world_size {world}", "Give a divisor of world_size.")
    experts = values.get("moe_ep_size", 1) * values.get("moe_tp_size", 1)
    if experts >= 1 and world >= 1 and world % experts:
        bad("moe_tp_size", f"moe_ep_size x moe_tp_size = {experts} does not divide world_size {world}")
    attention, o_proj = values.get("attn_tp_size", 1), values.get("o_proj_tp_size", 1)
    if attention > 1 and o_proj != attention:
        bad("o_proj_tp_size", f"{o_proj} differs from attn_tp_size {attention}", f"Give {attention}.")
    return problems
