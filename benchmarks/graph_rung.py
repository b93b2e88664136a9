"""Benchmark: the graph rung's seconds and memory against the number of layers.

    python benchmarks/graph_rung.py [overrides, e.g. runtime=npugraph_ex]

Lowers full-size LongCat-Flash (longcat_a3_ep32, w8a8) with 1, 4 and 28 layers, each in a worker of its own, and checks
every node. Measured on this host; CPU seconds are the worker's, wall seconds include starting it. Exits with 1 if a
rung does not pass, if 28 layers take more than 60 s or 2 GiB, or if the time above that of one layer grows faster than
the layers do.
"""

import resource
import sys
from typing import NamedTuple

from pipeline.compose import compose_grid
from pipeline.experiment import Prepared, build_experiment, prepare
from pipeline.graph.rung import check_graph
from pipeline.overrides import read_overrides

LAYERS = (1, 4, 28)
SECONDS = 60.0
MIB = 2048.0
GROWTH = 1.5  # most that a layer may cost at 28 layers, in costs of a layer at 4
OVERRIDES = ("recipe=longcat_flash/decode_prefetch", "deployment=longcat_a3_ep32", "runtime=ge_graph")
WITHIN_LAYER = "router,gate_up_0,down_0,q_a_1,q_b_1,kv_a_1,gate_up_1,down_1"


class Row(NamedTuple):
    """One number of layers."""

    layers: int
    status: str
    nodes: int
    planned: int
    found: int
    wall: float
    cpu: float
    mib: float


def main(overrides: list[str]) -> int:
    """Print the table; 1 if a limit is exceeded."""
    rows = []
    form = "{:>6} {:>8} {:>6} {:>8} {:>6} {:>8} {:>8} {:>9}"
    print(form.format("layers", "status", "nodes", "planned", "found", "wall s", "CPU s", "peak MiB"))
    for layers in LAYERS:
        row = measure(layers, overrides)
        rows.append(row)
        figures = (f"{row.wall:.1f}", f"{row.cpu:.1f}", f"{row.mib:.0f}")
        print(form.format(row.layers, row.status, row.nodes, row.planned, row.found, *figures), flush=True)
    one, few, all_layers = rows
    slope = (
        (few.cpu - one.cpu) / (few.layers - one.layers),
        (all_layers.cpu - one.cpu) / (all_layers.layers - one.layers),
    )
    print(f"CPU seconds per layer: {slope[0]:.2f} up to {few.layers}, {slope[1]:.2f} up to {all_layers.layers}")
    bad = [f"{r.layers} layers: {r.status}, {r.found} of {r.planned}" for r in rows if r.status != "passed"]
    bad += [f"{all_layers.wall:.1f} s, limit {SECONDS:.0f} s"] if all_layers.wall > SECONDS else []
    bad += [f"{all_layers.mib:.0f} MiB, limit {MIB:.0f} MiB"] if all_layers.mib > MIB else []
    bad += ["the time grows faster than the layers"] if slope[1] > GROWTH * slope[0] else []
    print("\n".join(f"EXCEEDED: {text}" for text in bad) or "all limits kept")
    return 1 if bad else 0


def measure(layers: int, overrides: list[str]) -> Row:
    """Lower and check one model."""
    prepared = _prepare(layers, overrides)
    assert prepared.realisation is not None and prepared.realisation.source is not None  # overrides may ask for a wrap
    source = prepared.realisation.source.after
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    check = check_graph(prepared, source)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if check.rung.status != "passed":
        print(check.rung.detail, file=sys.stderr)
    counts = (check.nodes or 0, check.planned, check.found or 0)
    return Row(layers, check.rung.status, *counts, check.seconds, cpu, check.peak_mib)


def _prepare(layers: int, overrides: list[str]) -> Prepared:
    size = [f"model.config.num_layers={layers}"]
    if layers == 1:  # there is no next layer, whose weights the recipe would prefetch
        size.append(f"recipe.prefetch.only=[{WITHIN_LAYER}]")
    replaced = {override.partition("=")[0] for override in overrides}
    words = [word for word in OVERRIDES if word.partition("=")[0] not in replaced]
    (point,) = compose_grid(read_overrides([*words, *overrides, *size])[0], sweep=False)
    return prepare(build_experiment(point.config, point.sources()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
