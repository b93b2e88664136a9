"""Tuning in the specification's order: one target at a time, sizes first, then what adds on top."""

from decimal import Decimal
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.config_files import CONF
from pipeline.replay.timed import profile_workload, weight_name
from pipeline.replay.tuning import Candidate, tune
from pipeline.simulator.copies import Copy
from pipeline.simulator.forecast import Baseline
from pipeline.simulator.machine import Machine
from tests.pipeline.mapping.steps import make_step

MIB = 1 << 20


def machine() -> Machine:
    return Machine.from_mapping(YAML(typ="safe").load(Path(CONF / "hardware/atlas_a3.yaml").read_text()))


@pytest.fixture(scope="module")
def baseline() -> Baseline:
    """A long quiet kernel, a big weight, a short kernel, and a weight right behind it."""
    rows = [("AllReduce", 0, 0), ("MatMulV3", 0, 32 * MIB), ("RmsNorm", 0, 0), ("MatMulV3", 0, 32 * MIB)]
    step = make_step(rows, us=[60.0, 28.0, 3.0, 28.0], gap=0.1)
    return Baseline(profile_workload(step).workload, machine().for_mode("ge_graph"), draws=32)


def candidate(name: str, at: int, after: int) -> Candidate:
    return Candidate(name, (Copy(weight_name(at), after, 32 * MIB, 0),), weight_name(at))


def test_every_target_is_tried_alone_at_every_size_in_the_specifications_order(baseline: Baseline) -> None:
    found = tune(baseline, [candidate("up", 1, -1), candidate("down", 3, 1)], draws=16)
    sizes = [t.chosen[0] for t in found.alone]
    assert sizes[:5] == [("up", Decimal(c)) for c in ("0.5", "0.7", "1.0", "0.3", "0.1")]
    assert len(sizes) == 10
    assert all(t.gain.low is not None and t.gain.low <= t.gain.value <= t.gain.high for t in found.alone)


def test_a_long_window_holds_the_whole_weight(baseline: Baseline) -> None:
    found = tune(baseline, [candidate("up", 1, -1)], draws=16)
    assert found.best is not None
    assert found.best.chosen == (("up", Decimal("1.0")),)
    assert found.best.gain.value > 10


def test_of_two_positions_for_one_weight_only_one_is_taken(baseline: Baseline) -> None:
    found = tune(baseline, [candidate("early", 3, -1), candidate("late", 3, 2)], draws=16)
    assert found.best is not None
    assert len(found.best.chosen) == 1


def test_a_target_is_added_only_if_the_step_gets_faster(baseline: Baseline) -> None:
    found = tune(baseline, [candidate("up", 1, -1), candidate("down", 3, 1)], draws=16)
    totals = [t.gain.value for t in found.steps]
    assert totals == sorted(totals)
    assert all(r.gain.value <= totals[-1] for r in found.refused)


def test_where_nothing_pays_nothing_is_chosen(baseline: Baseline) -> None:
    found = tune(baseline, [candidate("too late", 1, 1)], draws=16)
    assert found.best is None


def test_a_further_position_is_tried_after_the_size_and_at_that_size(baseline: Baseline) -> None:
    """Behind the first MatMul there are 3 us for the second weight; behind nothing there are 90."""
    found = tune(baseline, [candidate("down", 3, 1), candidate("down early", 3, -1)], draws=16)
    assert {t.chosen[0][0] for t in found.alone} == {"down"}
    best = max(found.alone, key=lambda t: (t.gain.value, -t.chosen[0][1]))
    assert [t.chosen for t in found.moved] == [(("down early", best.chosen[0][1]),)]
    assert found.moved[0].gain.value > best.gain.value
    assert found.best is not None
    assert found.best.chosen == found.moved[0].chosen
