"""The entry point: what is typed, what is refused, what goes to which stream."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from models.problems import Problem
from tests.pipeline.cli_fixtures import RECIPE, App, Result

COEFFICIENT = "recipe.prefetch.coefficient"


def codes(result: Result) -> list[str]:
    assert result.code == 2 and result.json["status"] == "refused"
    return [problem["code"] for problem in result.json["problems"]]


def test_the_verb_defaults_to_run(app: App):
    result = app(RECIPE, "format=json")
    assert result.code == 0 and result.json["status"] == "ok"
    assert Path(result.json["output_dir"]).is_dir()


@pytest.mark.parametrize("words", [("-m", "validate"), ("validate", "-m"), ("validate", RECIPE, "-m")])
def test_the_sweep_flag_may_stand_anywhere(app: App, words: tuple[str, ...]):
    words = words if RECIPE in words else (*words, RECIPE)
    assert app(*words, f"{COEFFICIENT}=0.5,0.7", "format=json").json["points"] == 2


def test_json_is_one_object_on_stdout_and_everything_else_is_on_stderr(app: App):
    result = app("-m", RECIPE, f"{COEFFICIENT}=0.5,0.7", "format=json", "runtime=eager")
    assert len(result.json["trials"]) == 2
    assert "a library that prints" in result.err and "testing only" in result.json["problems"][0]["message"]


def test_text_shows_the_table_and_the_report_and_warnings_go_to_stderr(app: App):
    result = app("-m", RECIPE, f"{COEFFICIENT}=0.5,0.7", "runtime=eager")
    for words in ("0.5", "0.7", "+0.50", "[-0.50, +1.50]", "improved", "(modelled)", "Each target alone", "report.md"):
        assert words in result.out
    assert "testing only" in result.err and "testing only" not in result.out


def test_problems_of_the_command_line_hide_none_of_the_recipe_nor_of_the_output(app: App):
    (app.folder / "file").touch()
    words = ["recpe.x=1", f"{COEFFICIENT}=half", "verify.graph=maybe", "runtime.x=1", "output=file", "format=json"]
    known = ["unknown-key", "unknown-key", "bad-value", "output-not-writable", "bad-coefficient"]
    assert codes(app(RECIPE, *words)) == known


def test_a_choice_that_cannot_be_read_stands_alone(app: App):
    assert codes(app("recipe='x", f"{COEFFICIENT}=half", "format=json")) == ["cannot-parse"]


@pytest.mark.parametrize("text", [b"# \xe9\nname: x\n", "name: x\n".encode("utf-16"), b"a: " + b"[" * 3000])
@pytest.mark.parametrize("name", ["recipe/toy/decode", "deployment/one_die"])
def test_files_that_no_parser_reads_are_refused(app: App, name: str, text: bytes):
    (app.conf / f"{name}.yaml").write_bytes(text)
    result = app(RECIPE, "format=json")
    assert set(codes(result)) <= {"not-utf8", "not-yaml"}
    if b"[" not in text:
        assert result.json["problems"][0]["file"].endswith(f"{name}.yaml")


@pytest.mark.parametrize("group", ["deployment", "hardware", "runtime", "model"])
def test_a_group_file_that_is_a_list_is_refused(app: App, group: str):
    (app.conf / group).mkdir(exist_ok=True)
    name = "toy" if group == "model" else "list"
    (app.conf / group / f"{name}.yaml").write_text("- a\n- b\n")
    result = app("validate", RECIPE, f"{group}={name}", "format=json")
    assert codes(result) == ["not-a-mapping"]
    assert result.json["problems"][0]["file"].endswith(f"{group}/{name}.yaml")


def test_an_unknown_key_of_the_runtime_is_refused(app: App):
    (app.conf / "runtime").mkdir()
    (app.conf / "runtime/mine.yaml").write_text("name: mine\nexe_mode: ge_graph\nexe_mod: eager\n")
    result = app("validate", RECIPE, "runtime=mine", "format=json")
    assert codes(result) == ["unknown-key"]
    [problem] = result.json["problems"]
    assert "`exe_mode`" in problem["message"] and problem["line"] == 3


def test_a_recipe_that_names_what_is_not_there_is_pointed_at(app: App):
    path = app.conf / "recipe/toy/decode.yaml"
    path.write_text(path.read_text().replace("hardware: toy_chip", "hardware: toy_chp"))
    [problem] = app("validate", RECIPE, "format=json").json["problems"]
    assert (problem["code"], problem["line"]) == ("unknown-hardware", 5)


def test_unknown_verb_names_the_near_one(app: App):
    result = app("validat", RECIPE, "format=json")
    assert codes(result) == ["unknown-verb"] and "`validate`" in result.json["problems"][0]["message"]


def test_verbs_of_later_versions_are_refused_with_a_reason(app: App):
    assert codes(app("promote", "format=json")) == ["verb-not-available"]


def test_all_unknown_keys_are_reported_at_once_with_and_without_plus(app: App):
    result = app("validate", RECIPE, "+recpe.x=1", "verifi.graph=true", "verify.graf=true", "format=json")
    assert codes(result) == ["unknown-key"] * 3
    messages = [p["message"] for p in result.json["problems"]]
    assert ["Did you mean" in message for message in messages] == [True] * 3


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_unknown_keys_in_a_recipe_reach_its_own_validation(app: App, plus: str):
    assert codes(app("validate", RECIPE, f"{plus}recipe.prefetch.coeficient=0.5", "format=json")) == ["unknown-key"]


@pytest.mark.parametrize("value", ["0", "-3", "1.5", "half"])
def test_a_bad_value_is_refused_and_nothing_is_written(app: App, value: str):
    assert codes(app(RECIPE, f"{COEFFICIENT}={value}", "format=json")) == ["bad-coefficient"]
    assert app.written == [] and app.trials == []


def test_one_bad_point_refuses_the_grid_before_any_trial_runs(app: App):
    assert codes(app("-m", RECIPE, f"{COEFFICIENT}=0.5,half,2", "format=json")) == ["bad-coefficient"] * 2
    assert app.written == [] and app.trials == []


def test_several_values_without_the_flag_are_refused(app: App):
    result = app(RECIPE, f"{COEFFICIENT}=0.5,0.7", "format=json")
    assert codes(result) == ["sweep-without-m"] and "-m" in result.json["problems"][0]["fix"]


def test_unknown_options_list_the_known_ones(app: App):
    result = app("validate", "recipe=toy/decod", "deployment=one_dye", "hardware=x", "format=json")
    assert codes(result) == ["unknown-recipe", "unknown-deployment", "unknown-hardware"]
    assert "`toy/decode`" in result.json["problems"][0]["message"] and "one_die" in result.json["problems"][1]["fix"]


def test_a_recipe_without_another_model(app: App):
    assert codes(app("validate", RECIPE, "model=other", "format=json")) == ["recipe-for-another-model"]
    assert app("validate", RECIPE, "model=toy").code == 0


def test_no_recipe_lists_the_recipes(app: App):
    result = app("validate", "format=json")
    assert codes(result) == ["no-recipe"] and "toy/decode" in result.json["problems"][0]["fix"]


def test_backends_of_later_versions_are_refused(app: App):
    assert codes(app("validate", RECIPE, "backend=npu", "format=json")) == ["backend-not-available"]


@pytest.mark.parametrize(
    "override",
    [
        "recipe.prefetch.targets.router.coefficient=0.7",
        "+recipe.prefetch.targets.x={weight: layers.{i}.a, dependency: layers.{i}.b}",
        "+recipe.prefetch.targets.x={weight: 'layers.{i+1}.a', dependency: layers.{i}.b:input, max_size: 18 MiB}",
        "recipe.prefetch.targets.x.weight=layers.[0,2-5].a",
        "~recipe.prefetch.targets.router",
        "recipe.prefetch.only=[router]",
        "+model.config.hidden_size=4096",
        "deployment.batch_size=2",
        "+verify.graph=false",
    ],
)
def test_what_must_succeed(app: App, override: str):
    result = app(RECIPE, override, "format=json")
    assert result.code == 0, result.out + result.err


def test_what_arrives_is_what_was_meant(app: App):
    assert (
        app(RECIPE, "+recipe.prefetch.targets.x={weight: layers.{i+1}.a, max_size: 18 MiB}", "model.config.n=4").code
        == 0
    )
    [config] = app.trials
    assert config["recipe"]["prefetch"]["targets"]["x"] == {"weight": "layers.{i+1}.a", "max_size": "18 MiB"}
    assert config["model"]["config"] == {"hidden_size": 8, "n": 4}


def test_deleting_what_is_not_there_names_what_is(app: App):
    result = app("validate", RECIPE, "~recipe.prefetch.targets.ruter", "format=json")
    assert codes(result) == ["unknown-key"] and "`router`" in result.json["problems"][0]["message"]


def test_paths_with_spaces_commas_and_equals_signs(app: App):
    assert app(RECIPE, "output=my results, a=b").code == 0
    [folder] = (app.folder / "my results, a=b").glob("*/*/")
    assert app("reproduce", str(folder)).code == 0


def test_only_run_writes(app: App):
    for words in (("validate", RECIPE), ("propose", RECIPE), ("list",), ("--help",), ("run", "--help")):
        assert app(*words).code == 0
    assert app.written == []


def test_a_bug_of_ours_is_one_json_object_too(app: App, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.sweep.outputs.create", lambda *a, **k: 1 / 0)
    result = app(RECIPE, "format=json")
    assert result.code == 1 and "ZeroDivisionError" in result.json["error"] and "Traceback" in result.err


def test_yaml_that_does_not_parse_is_refused_with_file_and_line(app: App):
    (app.conf / "recipe/toy/broken.yaml").write_text("name: x\nprefetch: [\n")
    result = app("validate", "recipe=toy/broken", "format=json")
    assert codes(result) == ["not-yaml"] and result.json["problems"][0]["file"].endswith("broken.yaml")


def test_an_interpreter_without_call_positions_is_refused_where_source_is_rewritten(
    app: App, monkeypatch: pytest.MonkeyPatch
):
    code = "from pipeline.environment import interpreter_problems as p; print([x.code for x in p()])"
    words = [sys.executable, "-X", "no_debug_ranges", "-c", code]
    assert subprocess.run(words, capture_output=True, text=True).stdout.strip() == "['no-call-positions']"
    monkeypatch.setattr("pipeline.sweep.interpreter_problems", lambda: [Problem("error", "no-call-positions", "x")])
    assert codes(app(RECIPE, "format=json")) == ["no-call-positions"]
    assert app("validate", RECIPE).code == 0 and app(RECIPE, "transform=wrap").code == 0


def test_help_and_the_config_groups_need_no_torch():
    code = (
        "import sys; from pipeline.cli import main; "
        "codes = [main(w) for w in (['--help'], ['validate', '--help'], ['list', 'recipes'])]; "
        "assert codes == [0, 0, 0], codes; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "longcat_flash/decode_prefetch" in done.stdout


@pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {}])
def test_any_locale_and_any_working_directory_will_do(tmp_path: Path, locale: dict[str, str]):
    folder = tmp_path / "\u00e9 \udcff"  # the second byte is no UTF-8
    folder.mkdir()
    root = Path(__file__).resolve().parents[2]
    for words in (["list", "recipes"], ["list", "format=json"], ["recipe=\u914d\u65b9", "format=json"]):
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", *words],
            env={**os.environ, **locale, "PYTHONPATH": str(root)},
            cwd=folder,
            capture_output=True,
        )
        assert b"Traceback" not in done.stderr and done.returncode == (2 if "recipe" in words[0] else 0)
        if "format=json" in words:
            json.loads(done.stdout.decode("utf-8"))
