"""Machine models: what the configuration may say, and what the draws are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import conf
from models.problems import Problem, RefusedError
from pipeline.simulator.machine import Machine, Unknown
from pipeline.simulator.parameters import UNKNOWNS

HARDWARE = Path(conf.__path__[0]) / "hardware"


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((HARDWARE / f"{name}.yaml").read_text())


def problems(mapping: dict[str, Any]) -> dict[str | None, Problem]:
    with pytest.raises(RefusedError) as refused:
        Machine.from_mapping(mapping, "conf/hardware/x.yaml")
    return {problem.key: problem for problem in refused.value.problems}


@pytest.mark.parametrize("name", ["atlas_a2", "atlas_a3"])
def test_committed_machines_are_complete_and_every_figure_has_a_source(name: str) -> None:
    machine = Machine.from_mapping(read(name))
    assert machine.name == name
    assert set(machine.unknowns) == set(UNKNOWNS)
    assert all(unknown.source for unknown in (*machine.unknowns.values(), *machine.fixed.values()))
    assert set(machine.sources) >= {"cores", "vector_cores", "hbm_peak", "l2_bytes"}
    assert machine.l2_bytes == 192 * 2**20 and machine.hbm_peak == 1.6e6
    nominal = machine.nominal()
    assert nominal["cmo_bandwidth"] == pytest.approx(0.9e6) and nominal["core_bandwidth"] == 90e3
    assert nominal["peak_bf16"] == 354e6


def test_the_l2_size_of_the_950_has_to_be_given() -> None:
    mapping = read("atlas_950")
    problem = problems(mapping)["hardware.l2_bytes"]
    assert problem.code == "missing-figure" and "atlas_950" in problem.message
    assert "hardware.l2_bytes=" in problem.fix
    machine = Machine.from_mapping({**mapping, "l2_bytes": 128 * 2**20})
    assert machine.cores == 32 and machine.generation == "950"


def test_all_problems_at_once() -> None:
    mapping = read("atlas_a3")
    mapping["hbm_peek"] = 3
    mapping["cores"] = 2.5
    mapping["l2_bytes"] = "large"
    mapping["generation"] = "a7"
    mapping["unknowns"]["cmo_bandwith"] = mapping["unknowns"].pop("cmo_bandwidth")
    mapping["unknowns"]["gap"]["low"] = 9
    mapping["unknowns"]["hbm_share"]["high"] = 1.2
    mapping["unknowns"]["late_bytes"]["nominal"] = 0.5
    mapping["unknowns"]["cmo_task"]["unit"] = "s"
    mapping["unknowns"]["issue"]["high"] = "many"
    mapping["unknowns"]["l2_share"] = 0.6
    del mapping["unknowns"]["core_bandwidth"]["source"]
    del mapping["fixed"]["mix"]
    del mapping["sources"]["hbm_peak"]
    found = problems(mapping)
    assert {key: found[f"hardware.{key}"].code for key in (k[len("hardware.") :] for k in found if k)} == {
        "hbm_peek": "unknown-key",
        "cores": "bad-value",
        "l2_bytes": "bad-value",
        "generation": "bad-value",
        "unknowns.cmo_bandwith": "unknown-key",
        "unknowns.cmo_bandwidth": "missing-key",
        "unknowns.gap": "bad-band",
        "unknowns.hbm_share": "bad-range",
        "unknowns.late_bytes": "bad-value",
        "unknowns.cmo_task.unit": "bad-unit",
        "unknowns.issue": "bad-value",
        "unknowns.l2_share": "bad-type",
        "unknowns.core_bandwidth.source": "missing-source",
        "fixed.mix": "missing-key",
        "sources.hbm_peak": "missing-source",
    }
    assert "hbm_peak" in found["hardware.hbm_peek"].fix
    assert "cmo_bandwidth" in found["hardware.unknowns.cmo_bandwith"].fix
    assert all(problem.file == "conf/hardware/x.yaml" for problem in found.values())


def test_mappings_of_the_wrong_type() -> None:
    mapping = {**read("atlas_a3"), "unknowns": 3, "fixed": None}
    found = problems(mapping)
    assert found["hardware.unknowns"].code == "bad-type"
    assert found["hardware.fixed.cube"].code == "missing-key"


def test_draws_span_the_band_and_half_lie_on_each_side_of_nominal() -> None:
    machine = Machine.from_mapping(read("atlas_a3"))
    draws = machine.draws(400)
    for name, unknown in machine.unknowns.items():
        values = np.array([draw[name] for draw in draws])
        assert unknown.low <= values.min() and values.max() <= unknown.high
        if unknown.dimension == "choice":
            assert (values == unknown.nominal).mean() >= 0.5 and (values == unknown.low).mean() == 0.25
        else:
            assert np.median(values) == pytest.approx(unknown.nominal, rel=0.02, abs=0.02)
    values = np.array([draw.fixed["vector"] for draw in draws])
    assert np.median(values) == pytest.approx(2.0, rel=0.02)


def test_draws_are_a_function_of_seed_and_name_and_unknowns_are_independent() -> None:
    machine = Machine.from_mapping(read("atlas_a3"))
    assert machine.draws(16, 3) == machine.draws(16, 3)
    assert machine.draws(16, 3) != machine.draws(16, 4)
    more = read("atlas_a3")
    more["fixed"]["NewKernel"] = more["fixed"]["cube"]
    for old, new in zip(machine.draws(16), Machine.from_mapping(more).draws(16), strict=True):
        assert old.values == new.values
        assert new.fixed["NewKernel"] != new.fixed["cube"]
    draws = machine.draws(400)
    one, other = (np.array([draw[name] for draw in draws]) for name in ("cmo_bandwidth", "hbm_share"))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.15


def test_eager_mode_pays_a_host_dispatch_for_each_prefetch() -> None:
    machine = Machine.from_mapping(read("atlas_a3"))
    assert machine.for_mode("ge_graph").nominal()["issue"] == 0.5
    assert machine.for_mode("eager").nominal()["issue"] == 65.0


def test_fixed_time_of_the_operator_beats_that_of_its_engine() -> None:
    nominal = Machine.from_mapping(read("atlas_a3")).nominal()
    assert nominal.fixed_us("FusedInferAttentionScore", "mix") == 6.0
    assert nominal.fixed_us("MatMul", "cube") == nominal.fixed["cube"]
    assert nominal.fixed_us("Idle", "idle") == 0.0


def test_values_between_the_ends_are_linear() -> None:
    unknown = Unknown(1.0, 2.0, 6.0, "us", "here")
    assert unknown.at(np.array([0.0, 0.25, 0.5, 0.75, 1.0])).tolist() == [1.0, 1.5, 2.0, 4.0, 6.0]
