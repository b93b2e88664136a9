"""`python -m pipeline.coverage [TYPE ...]`: single rows on the terminal, or all of them into docs/coverage.md."""

import argparse
import os
import sys
from functools import partial
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
# Compiling takes seconds: every so many types in alphabetical order, and the ones that people ask for first.
_EVERY = 8
_ALWAYS = ("deepseek_v3", "falcon", "gemma", "glm4_moe", "gpt2", "gpt_oss", "llama", "longcat_flash", "qwen3_moe")


def main(arguments: list[str] | None = None) -> int:
    """Make the rows; 0 if no row has a failed check (refusals are answers), 1 if one has, 2 for an unknown type."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.coverage", description=__doc__)
    parser.add_argument("types", nargs="*", metavar="TYPE", help="model types; all of them, into the page, if none")
    parser.add_argument("--processes", type=int, default=min(4, os.cpu_count() or 1), help="at the same time")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="that one architecture may take")
    parser.add_argument("--compile", choices=("sample", "all", "none"), default="sample", help="which are compiled")
    parser.add_argument("--output", type=Path, default=PAGE, help="the page")
    options = parser.parse_args(arguments)

    from models.hf.types import causal_lm_types, type_problem

    problems = [problem for name in options.types if (problem := type_problem(name))]
    for problem in problems:
        print(f"{problem.message} {problem.fix}", file=sys.stderr)
    if problems:
        return 2
    from pipeline.coverage.row import FAILED, NOT_RUN, make_row
    from pipeline.coverage.table import page, reasons, table
    from pipeline.coverage.workers import make_rows

    known = causal_lm_types()
    jobs = [(n, partial(make_row, n, _compiled(n, known, options.compile))) for n in options.types or known]
    rows = []
    for done in make_rows(jobs, options.processes, options.limit):
        rows.append(done)
        ended = ", ".join(f"{check} {status}" for check, status in done.checks.items() if status != NOT_RUN)
        print("; ".join([f"{len(rows)}/{len(jobs)} {done.model_type}: {ended}", *reasons(done)]), file=sys.stderr)
    if options.types:
        order = {name: place for place, name in enumerate(options.types)}
        rows.sort(key=lambda r: order[r.model_type])
        print(table(rows))
        for reason in (f"{r.model_type}: {text}" for r in rows for text in reasons(r)):
            print(reason)
    else:
        options.output.write_text(page(rows), encoding="utf-8")
    return int(any(status == FAILED for r in rows for status in r.checks.values()))


def _compiled(name: str, known: tuple[str, ...], choice: str) -> bool:
    if choice != "sample":
        return choice == "all"
    return name in _ALWAYS or known.index(name) % _EVERY == 0


if __name__ == "__main__":
    sys.exit(main())
