"""`python -m tests.fuzz [cases] [seed]`: mutated profiler files on all cores; exit code 1 if any of them failed."""

import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz.profiles import fuzz

BLOCK = 500
os.environ.setdefault("POLARS_MAX_THREADS", "1")  # the files are small, and every core has a worker


def main(cases: int = 100_000, seed: int = 1) -> int:
    """Run all cases and print the counts."""
    begin = time.perf_counter()
    counts: Counter[str] = Counter()
    failures: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="fuzz_"))
    blocks = [range(at, min(at + BLOCK, cases)) for at in range(0, cases, BLOCK)]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(fuzz, block, seed, folder) for block in blocks]
        for done, job in enumerate(as_completed(jobs), 1):
            found, failed = job.result()
            counts += found
            failures += failed
            if done % 20 == 0:
                print(f"{sum(counts.values())} of {cases}", file=sys.stderr, flush=True)
    for failure in failures[:10]:
        print(failure)
    told = ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))
    print(f"{sum(counts.values())} mutated files (seed {seed}) in {time.perf_counter() - begin:.0f} s: {told}")
    if not failures:
        folder.rmdir()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
