"""Profiles of a small decode step made by hand, with noise, and changes of single kernels."""

import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pipeline.analysis.analyse import analyse
from pipeline.comparison.side import Side
from pipeline.config_files import CONF
from pipeline.simulator.machine import Machine
from tests.pipeline.analysis.frames import collective, in_order, matmul, profile, vector

LAYERS = 4
Kernel = dict[str, Any]
Edit = Callable[[list[Kernel]], Iterable[Kernel]]


def machine() -> Machine:
    return Machine.from_mapping(YAML(typ="safe").load((CONF / "hardware/atlas_a3.yaml").read_text()))


def decode_step(layers: int = LAYERS, rows: int = 8) -> list[Kernel]:
    """Seven kernels a layer, 150 us; embedding before, norm and head behind."""
    layer = [
        vector("AddRmsNorm", rows * 4096, 3.0, name="norm"),
        matmul(rows, 4096, 2048, 13.0, name="o_proj"),
        collective(20.0, name="all_reduce"),
        vector("AddRmsNorm", rows * 4096, 5.0, name="post_norm"),
        matmul(rows, 4096, 12288, 70.0, "INT8", name="gate_up"),
        vector("SwiGlu", rows * 6144, 3.0, name="swiglu"),
        matmul(rows, 6144, 4096, 36.0, name="down"),
    ]
    head = [vector("RmsNorm", rows * 4096, 2.0, name="last_norm"), matmul(rows, 4096, 32000, 190.0, name="head")]
    return [
        vector("GatherV2", rows * 4096, 2.0, name="embed"),
        *([dict(k) for _ in range(layers) for k in layer]),
        *head,
    ]


def run(
    one: list[Kernel] | None = None,
    factors: Mapping[str, float] | None = None,
    edit: Edit | None = None,
    steps: int = 7,
    noise: float = 0.02,
    seed: int = 0,
    pause: float = 40.0,
) -> list[Kernel]:
    """Kernels of several steps, each of which has noise of its own; the first is slower.

    Args:
        one: of a step, without starts.
        factors: name -> factor on the kernel's time.
        edit: what else is changed in every step (inserted, taken away).
        steps: how many, the slow first one included.
        noise: relative standard deviation of every kernel.
        seed: of the noise.
        pause: between steps, us.
    """
    rng, rows, at = random.Random(seed), [], 0.0
    for number in range(steps):
        slow = 1.3 if number == 0 and steps > 1 else 1.0
        kernels = [dict(k) for k in (one or decode_step())]
        for kernel in kernels:
            kernel["duration_us"] *= slow * (factors or {}).get(kernel["name"], 1.0) * max(0.5, rng.gauss(1.0, noise))
        placed = in_order(edit(kernels) if edit else kernels, start=at)
        rows += [{**k, "step": number + 3} for k in placed]
        at = max(k["start_us"] + k["duration_us"] for k in placed) + pause
    return rows


def side(kernels: list[Kernel], name: str = "a") -> Side:
    """A profile of these kernels as one side of a comparison."""
    found = profile(kernels, source=Path(f"{name}.csv"), files=(Path(f"{name}.csv"),))
    analysis = analyse(found, machine())
    phase = analysis.phase("decode")
    assert phase is not None
    return Side.of(Path(name), found, analysis, phase)


def with_copies(kernels: list[Kernel]) -> list[Kernel]:
    """A copy on a stream of its own, beside every kernel that follows an o_proj."""
    found, at = [], 0.0
    for kernel in kernels:
        found.append(kernel)
        at += kernel["duration_us"] + 0.1
        if kernel["name"] == "o_proj":
            copy = {"op_type": "Cmo", "core": "DSA_SQE", "duration_us": 8.0, "name": "cmo_prefetch"}
            found.append({**copy, "stream": "9"})
    return found
