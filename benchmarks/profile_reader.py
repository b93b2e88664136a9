"""Benchmark (g): a kernel_details.csv of a million rows, read and analysed, against polars reading the same columns.

    python benchmarks/profile_reader.py [rows]

Writes the file to a temporary directory (about 400 MB), then runs polars alone, `read_profiles`, and `read_profiles`
with `analyse`, each in a child process of its own: once on 1,200 rows (imports and compiling are not counted), then
on the whole file. `ROUNDS` times in turn, so that all see the same load of the machine; the fastest of each counts.
Prints seconds, the ratio to polars, CPU time and the peak resident memory; exits with 1 if analysis takes over `RATIO`
times as long as polars or over `GIB`. A broken row makes the reader go through the file line by line: shown for
information.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROWS = 1_000_000
ROUNDS = 3
RATIO = 3.0
GIB = 1.5
SUBJECTS = ("polars", "read_profiles", "read_profiles + analyse")
RAGGED = "read_profiles, one ragged row"
HEADER = (
    "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),"
    "Wait Time(us),Block Dim,Mix Block Dim,HF32 Eligible,Input Shapes,Input Data Types,Input Formats,Output Shapes,"
    "Output Data Types,Output Formats,Context ID,aicore_time(us),aic_total_cycles,aic_mac_time(us),aic_mac_ratio,"
    "aic_scalar_time(us),aic_scalar_ratio,aic_mte1_time(us),aic_mte1_ratio,aic_mte2_time(us),aic_mte2_ratio,"
    "aic_fixpipe_time(us),aic_fixpipe_ratio,aic_icache_miss_rate,aiv_time(us),aiv_total_cycles,aiv_vec_time(us),"
    "aiv_vec_ratio,aiv_scalar_time(us),aiv_scalar_ratio,aiv_mte2_time(us),aiv_mte2_ratio,aiv_mte3_time(us),"
    "aiv_mte3_ratio,aiv_icache_miss_rate,cube_utilization(%)"
)
# Kernels of one decoder layer: type, core, shapes, dtypes and formats of inputs; shape of the output.
LAYER = (
    ("RmsNorm", "AI_VECTOR_CORE", "16,7168;7168", "DT_BF16;DT_BF16", "ND;ND", "16,7168"),
    ("MatMulV2", "AI_CORE", "16,7168;448,96,16,16", "DT_BF16;DT_BF16", "ND;FRACTAL_NZ", "16,1536"),
    ("RmsNorm", "AI_VECTOR_CORE", "16,1536;1536", "DT_BF16;DT_BF16", "ND;ND", "16,1536"),
    ("MatMulV2", "AI_CORE", "16,1536;96,768,16,16", "DT_BF16;DT_BF16", "ND;FRACTAL_NZ", "16,12288"),
    (
        "FusedInferAttentionScore",
        "MIX_AIC",
        "16,64,1,512;1,128,512;",
        "DT_BF16;DT_BF16;INT64",
        "ND;ND;ND",
        "16,64,1,512",
    ),
    ("MatMulV2", "AI_CORE", "16,8192;512,448,16,16", "DT_BF16;DT_BF16", "ND;FRACTAL_NZ", "16,7168"),
    ("AddRmsNorm", "AI_VECTOR_CORE", "16,7168;16,7168;7168", "DT_BF16;DT_BF16;DT_BF16", "ND;ND;ND", "16,7168"),
    (
        "QuantBatchMatmulV3",
        "AI_CORE",
        "16,7168;1152,448,16,32;36864",
        "INT8;INT8;FLOAT",
        "ND;FRACTAL_NZ;ND",
        "16,36864",
    ),
    ("SwiGlu", "AI_VECTOR_CORE", "16,36864", "DT_BF16", "ND", "16,18432"),
    ("MatMulV2", "AI_CORE", "16,18432;448,1152,16,16", "DT_BF16;DT_BF16", "ND;FRACTAL_NZ", "16,7168"),
)
LAYERS = 60


def write_table(path: Path, rows: int) -> None:
    """A table as torch_npu writes it: tab-ended starts, quoted shapes, metrics with 3 decimals."""
    rng = random.Random(1)
    noise = [[f"{rng.random() * 9:.3f}" for _ in range(24)] for _ in range(997)]
    at = 1_736_413_971_558_972_912
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(HEADER + "\n")
        for row in range(rows):
            op_type, core, shapes, dtypes, formats, out = LAYER[row % len(LAYER)]
            metrics = noise[row % len(noise)]
            at += rng.randrange(4_000, 60_000)
            file.write(
                f"{row // (len(LAYER) * LAYERS)},0,4294967295,{row % 65536},2,"
                f"aclnn{op_type}_{op_type}_{op_type},{op_type},dynamic,"
                f"{core},{at // 1000}.{at % 1000:03d}\t,{metrics[0]},{metrics[1]},24,0,NO,"
                f'"""{shapes}""",{dtypes},{formats},"""{out}""",DT_BF16,ND,N/A,'
                f"{','.join(metrics[:-1])},0.012,80.8\n"
            )


def subject(name: str) -> Callable[[Path], object]:
    """What is timed."""
    if name == "polars":
        return polars_alone
    from pipeline.profile.reader import read_profiles

    if name == "read_profiles":
        return read_profiles
    from pipeline.analysis.analyse import analyse
    from pipeline.simulator.machine import load_machine

    machine = load_machine("atlas_a2")
    return lambda path: analyse(read_profiles(path).profiles[0], machine)


def polars_alone(path: Path) -> object:
    """The columns that the reader reads, by name."""
    import polars as pl

    from pipeline.profile.columns import recognise

    layout = recognise(HEADER.split(","))
    assert layout is not None
    return pl.read_csv(path, columns=sorted(layout.index.values()), null_values=["N/A"])


def child(name: str, small: Path, big: Path) -> None:
    """Time one subject; prints one JSON object."""
    run = subject(name)
    run(small)
    begin, used = time.perf_counter(), time.process_time()
    run(big)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"seconds": seconds, "cpu": cpu, "gib": peak / (1 << 30)}))


def measured(name: str, small: Path, big: Path) -> dict[str, float]:
    """What a child process says."""
    command = [sys.executable, __file__, name, str(small), str(big)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main(rows: int = ROWS) -> int:
    """Write the files, run the children, print the table."""
    with tempfile.TemporaryDirectory() as folder:
        small, big = Path(folder) / "small.csv", Path(folder) / "big.csv"
        write_table(small, 2 * len(LAYER) * LAYERS)
        write_table(big, rows)
        print(f"{rows:,} rows, {big.stat().st_size / 1e6:.0f} MB; measured, fastest of {ROUNDS}")
        rounds = [{name: measured(name, small, big) for name in SUBJECTS} for _ in range(ROUNDS)]
        with big.open("a", encoding="utf-8") as file:
            file.write("cut,off\n")
        for figures in rounds:
            figures[RAGGED] = measured("read_profiles", small, big)
    names = (*SUBJECTS, RAGGED)
    found = {name: {key: min(figures[name][key] for figures in rounds) for key in ("seconds", "cpu")} for name in names}
    for name in names:
        found[name]["gib"] = max(figures[name]["gib"] for figures in rounds)
    base = found["polars"]["seconds"]
    for name, figures in found.items():
        seconds, cpu, gib = figures["seconds"], figures["cpu"], figures["gib"]
        print(f"{name:30} {seconds:6.2f} s  {seconds / base:5.2f} x  CPU {cpu:5.2f} s  {gib:5.2f} GiB")
    whole = found[SUBJECTS[-1]]
    fine = whole["seconds"] <= RATIO * base and whole["gib"] <= GIB
    print(f"limits: {RATIO} x and {GIB} GiB: {'kept' if fine else 'EXCEEDED'}")
    return 0 if fine else 1


if __name__ == "__main__":
    if len(sys.argv) == 4:
        child(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(main(*map(int, sys.argv[1:])))
