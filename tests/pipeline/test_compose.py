"""Composition: the recipe selects the groups beside it, and every grid point is composed."""

from pathlib import Path

import pytest

from models.problems import RefusedError
from pipeline.compose import CONF, GridPoint, compose_grid, options
from pipeline.overrides import read_overrides
from tests.pipeline.cli_fixtures import FILES, RECIPE


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, ...]:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return (tmp_path, CONF)


def compose(folders: tuple[Path, ...], *tokens: str, sweep: bool = True) -> list[GridPoint]:
    overrides, problems = read_overrides(tokens)
    assert problems == []
    return compose_grid(overrides, sweep, folders)


def codes(folders: tuple[Path, ...], *tokens: str) -> list[str]:
    with pytest.raises(RefusedError) as refused:
        compose(folders, *tokens)
    return [problem.code for problem in refused.value.problems]


def test_a_recipe_selects_its_model_deployment_hardware_and_runtime(folders: tuple[Path, ...]):
    [point] = compose(folders, RECIPE)
    names = {group: point.config[group]["name"] for group in ("model", "deployment", "hardware", "runtime")}
    assert names == {"model": "toy", "deployment": "one_die", "hardware": "toy_chip", "runtime": "ge_graph"}
    assert point.config["backend"]["name"] == "simulator"


def test_the_command_line_replaces_what_the_recipe_selects(folders: tuple[Path, ...]):
    [point] = compose(folders, RECIPE, "deployment=two_dies", "deployment.batch_size=2")
    assert point.config["deployment"] == {"name": "two_dies", "batch_size": 2}


def test_an_inherited_selection_counts(folders: tuple[Path, ...]):
    [point] = compose(folders, "recipe=toy/child")
    assert point.choices["model"] == "toy" and point.config["recipe"]["prefetch"]["coefficient"] == 0.25


def test_the_grid_is_the_product_with_the_last_key_fastest(folders: tuple[Path, ...]):
    points = compose(folders, RECIPE, "recipe.prefetch.coefficient=0.5,0.7", "recipe.prefetch.only=[router],[down]")
    found = [(p.config["recipe"]["prefetch"]["coefficient"], p.config["recipe"]["prefetch"]["only"]) for p in points]
    assert found == [(0.5, ["router"]), (0.5, ["down"]), (0.7, ["router"]), (0.7, ["down"])]
    assert points[1].label == "coefficient=0.5 only=[down]"


def test_swept_recipes_each_select_their_own_groups(folders: tuple[Path, ...]):
    (folders[0] / "recipe/toy/second.yaml").write_text(FILES["recipe/toy/decode.yaml"].replace("one_die", "two_dies"))
    first, second = compose(folders, "recipe=toy/decode,toy/second")
    assert (first.choices["deployment"], second.choices["deployment"]) == ("one_die", "two_dies")


def test_a_deletion_and_an_addition_of_one_target_replace_it(folders: tuple[Path, ...]):
    [point] = compose(folders, RECIPE, "recipe.prefetch.targets.down={weight: w}", "~recipe.prefetch.targets.down")
    assert point.config["recipe"]["prefetch"]["targets"]["down"] == {"weight": "w"}


def test_what_to_type_for_one_point_of_a_sweep(folders: tuple[Path, ...]):
    points = compose(folders, RECIPE, "recipe.prefetch.coefficient=0.5,0.7", "+model.config.n=1")
    assert points[1].typed == (RECIPE, "recipe.prefetch.coefficient=0.7", "+model.config.n=1")


def test_a_selected_option_that_is_missing_is_reported_at_the_recipe(folders: tuple[Path, ...]):
    path = folders[0] / "recipe/toy/decode.yaml"
    path.write_text(path.read_text().replace("one_die", "one_dye").replace("toy_chip", "chip"))
    assert codes(folders, RECIPE) == ["unknown-deployment", "unknown-hardware"]


def test_values_outside_their_choices(folders: tuple[Path, ...]):
    bad = ("format=xml", "transform=sauce", "verify.graph=maybe", "report.language=de", "trial.timeout=0")
    assert codes(folders, RECIPE, *bad) == ["bad-value"] * 5


def test_a_value_in_place_of_a_mapping(folders: tuple[Path, ...]):
    assert codes(folders, RECIPE, "verify=true") == ["not-a-mapping"]


def test_a_mandatory_value_is_asked_for(folders: tuple[Path, ...]):
    (folders[0] / "hardware/toy_chip.yaml").write_text("name: toy_chip\nl2_bytes: ???\n")
    assert codes(folders, RECIPE) == ["missing-value"]
    assert compose(folders, RECIPE, "hardware.l2_bytes=4")[0].config["hardware"]["l2_bytes"] == 4


def test_a_bad_interpolation_is_worded(folders: tuple[Path, ...]):
    (folders[0] / "hardware/toy_chip.yaml").write_text("name: toy_chip\nl2_bytes: ${nowhere}\n")
    assert codes(folders, RECIPE) == ["cannot-compose"]


def test_options_of_a_group_with_its_folders(folders: tuple[Path, ...]):
    assert {"toy/decode", "toy/child", "longcat_flash/decode_prefetch"} <= set(options("recipe", folders))


def test_a_grid_beyond_reason_is_refused_before_it_is_composed(folders: tuple[Path, ...]):
    words = ["recipe.prefetch.coefficient=range(0.0001,1,0.0001)", "deployment.batch_size=range(1,1000)"]
    assert codes(folders, RECIPE, *words) == ["grid-too-large"]


@pytest.mark.parametrize("words", ["format=text,json", "trial.timeout=1,2", "sweep.fail_fast=true,false"])
def test_what_does_not_decide_the_result_is_not_swept(folders: tuple[Path, ...], words: str):
    assert codes(folders, RECIPE, words) == ["not-sweepable"]


def test_an_option_in_two_folders_is_refused(tmp_path: Path):
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "atlas_a3.yaml").write_text("name: atlas_a3\n")
    overrides, _ = read_overrides(["recipe=qwen3/decode_prefetch", "hardware=atlas_a3"])
    with pytest.raises(RefusedError) as refused:
        compose_grid(overrides, False, (tmp_path, CONF))
    assert [(p.code, p.key) for p in refused.value.problems] == [("ambiguous-option", "hardware")]
