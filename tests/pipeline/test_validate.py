"""`validate` and `propose` on the committed recipes: what is matched, how many bytes, and what would be written."""

from pathlib import Path

import pytest

from pipeline.cli import main
from tests.pipeline.real_conf import LONGCAT, SMALL, call

MIB = 1 << 20
WHOLE = (LONGCAT, "deployment=unsharded", "recipe.prefetch.coefficient=1.0")


def sizes(data) -> dict[str, tuple[float, int]]:
    """Weight's last name -> (MiB, how many) over the whole plan."""
    found: dict[str, list[int]] = {}
    for entry in data["plan"]["prefetch"]:
        name = entry["weight"].removesuffix(".weight").rsplit(".", 1)[-1]
        found.setdefault(name, []).append(entry["theoretical_size"])
        assert entry["max_size"] == entry["theoretical_size"]
        assert set(entry) >= {"weight", "dependency", "port", "layer", "theoretical_size", "max_size", "offset"}
    return {name: (max(s) / MIB, len(s)) for name, s in found.items() if min(s) == max(s)}


def test_longcat_flash_has_the_specifications_sizes(capsys):
    code, data = call(capsys, "validate", *WHOLE)
    assert code == 0
    found = sizes(data)
    assert found["classifier"] == (18, 28)
    assert found["q_a_proj"] == (18, 55)
    assert found["q_b_proj"] == (36, 55)
    assert found["kv_a_proj_with_mqa"] == (6.75, 55)
    assert found["gate_up_proj"][1] == found["down_proj"][1] == 56
    assert len(data["plan"]["hash"]) == 16


def test_sizes_follow_the_models_own_dimensions(capsys):
    _, data = call(capsys, "validate", *WHOLE, "+model.config.hidden_size=4096")
    found = sizes(data)
    assert found["classifier"][0] == found["q_a_proj"][0] == 12
    assert found["kv_a_proj_with_mqa"][0] == 4.5
    assert found["q_b_proj"][0] == 36


def test_all_problems_of_recipe_and_model_come_at_once(capsys, tmp_path: Path):
    code, data = call(
        capsys,
        "validate",
        *SMALL,
        "recipe.prefetch.targets.router.coefficient=1.5",
        "recipe.prefetch.targets.gate_up_0.weight=layers.0.nope",
        "recipe.prefetch.targets.down_0.max_size=0",
    )
    assert code == 2 and data["status"] == "refused"
    errors = {p["key"] for p in data["problems"] if p["severity"] == "error"}
    assert errors >= {
        "recipe.prefetch.targets.router.coefficient",
        "recipe.prefetch.targets.gate_up_0.weight",
        "recipe.prefetch.targets.down_0.max_size",
    }


@pytest.mark.parametrize("recipe", ["longcat_flash/decode_prefetch_ffn", "qwen3/decode_prefetch"])
def test_the_other_committed_recipes_validate(capsys, recipe: str):
    code, data = call(capsys, "validate", f"recipe={recipe}")
    assert code == 0 and data["plan"]["prefetch"]


def test_a_proposal_shows_the_diff_its_places_and_a_hash_of_both(capsys):
    _, data = call(capsys, "propose", *SMALL)
    _, other = call(capsys, "propose", *SMALL, "recipe.prefetch.coefficient=1.0")
    assert data["patch_hash"] != other["patch_hash"]
    assert data["files"] == ["models/longcat_flash.py"]
    lines = data["diff"].splitlines()
    assert sum(line.lstrip("+ ").startswith("npu_prefetch(") for line in lines) == len(data["insertion_points"]) == 10


@pytest.mark.parametrize("prefetch", [True, False])
def test_a_proposal_shows_the_scopes_and_what_to_sweep_next(prefetch, capsys):
    words = ("recipe=longcat_flash/decode_full", *SMALL[1:], f"recipe.prefetch.enabled={str(prefetch).lower()}")
    _, data = call(capsys, "propose", *words)
    places = [p["text"] for p in data["insertion_points"] if "superkernel_scope(" in p["text"]]
    assert len(places) == 3 and all('"stream-fusion=1"' in place for place in places)
    assert main(["propose", *words]) == 0
    text = capsys.readouterr().out
    assert "SuperKernel scopes for longcat_flash" in text.split("\n")[0]
    assert "## SuperKernel scopes, strategy custom" in text and "`config.enable_superkernel`" in text
    assert "recipe.superkernel.strategy=attention,moe,decoder_layers,auto" in text
    for words_of_prefetch in ("weight prefetch", "## Targets", "`config.enable_prefetch`", "coefficient=0.5,0.7,1.0"):
        assert (words_of_prefetch in text) == prefetch, words_of_prefetch
