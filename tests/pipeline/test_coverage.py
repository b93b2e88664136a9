"""The table of architectures: a sample of its rows, processes that crash or hang, a page that comes out the same."""

import os
import time
from pathlib import Path

import pytest

from pipeline.coverage.__main__ import main
from pipeline.coverage.recipe import general_recipe
from pipeline.coverage.row import CHECKS, FAILED, NOT_RUN, PASSED, REFUSED, Row, make_row, of_error, shortened
from pipeline.coverage.table import page
from pipeline.coverage.workers import make_rows

# One of each kind: Conv1D, a parallel block, MLA with shared experts, bare stacks of experts, a fused projection,
# a BERT-like layer, another layer list's name, layers of two classes, kinds that only an attribute tells.
SAMPLE = ("gpt2", "falcon", "deepseek_v3", "gpt_oss", "phi3", "bert", "gpt_neox", "jamba", "gemma2", "qwen3_moe")


@pytest.mark.parametrize("model_type", SAMPLE)
def test_source_wrap_and_numbers_pass(model_type: str) -> None:
    row = make_row(model_type)
    assert row.reasons == {}
    assert row.whole and row.calls > 0


def test_an_architecture_that_can_not_decode_says_why() -> None:
    row = make_row("xlm")
    assert row.checks["structure"] == REFUSED and not row.whole
    assert "xlm" in row.reasons["structure"].lower()


def test_without_a_cache_there_is_no_decode_step() -> None:
    row = make_row("openai-gpt")
    assert row.checks == {**dict.fromkeys(CHECKS, NOT_RUN), "structure": REFUSED}


def test_the_general_recipe_has_the_targets_of_the_committed_ones() -> None:
    names = [target.name for target in general_recipe().prefetch.targets]
    assert {"attention_next", "mlp_up", "moe_router"} <= set(names)


def passing(name: str, after: float = 0.0) -> Row:
    time.sleep(after)
    return Row(name, "model.layers", "attention, mlp", 5, {check: PASSED for check in CHECKS})


def dying() -> Row:
    os._exit(7)


def killed() -> Row:
    os.kill(os.getpid(), 9)
    raise AssertionError


def test_a_process_that_dies_or_hangs_is_one_row_and_the_others_go_on() -> None:
    jobs = [
        ("dies", dying),
        ("is killed", killed),
        ("hangs", lambda: passing("hangs", 60.0)),
        ("works", lambda: passing("works")),
    ]
    rows = {row.model_type: row for row in make_rows(jobs, processes=2, limit=4.0)}
    assert rows.keys() == {name for name, _ in jobs}
    assert rows["works"].whole
    assert rows["dies"].reasons["structure"] == "its process died with exit code 7"
    assert rows["is killed"].reasons["structure"] == "its process died with signal SIGKILL"
    assert rows["hangs"].reasons["structure"] == "it took longer than 4 s"
    assert not any(rows[name].whole for name in ("dies", "is killed", "hangs"))


def test_a_row_without_calls_does_not_count() -> None:
    row = passing("empty")
    row.calls = 0
    assert not row.whole


def test_the_page_does_not_depend_on_the_order_of_the_rows() -> None:
    failed = Row("broken")
    failed.end("structure", FAILED, "RuntimeError: no\nway | out")
    rows = [passing("llama"), failed, passing("gpt2")]
    text = page(rows)
    assert text == page(rows[::-1])
    assert "**2 of 3**" in text
    assert "- **broken**: structure: RuntimeError: no way / out\n" in text
    assert text.index("| gpt2 |") < text.index("| llama |")


def test_of_an_error_only_the_first_line_is_told() -> None:
    """The others hold paths and addresses, which would change the page from run to run."""
    assert of_error(ValueError("\nno such size\nat /tmp/x1")) == "ValueError: no such size"


def test_reasons_stay_short() -> None:
    assert len(shortened("word " * 100)) <= 240


def test_an_unknown_type_is_refused_before_anything_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["llamma", "--output", str(tmp_path / "page.md")]) == 2
    assert "llama" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
