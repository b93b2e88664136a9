"""README and docs: every command line parses and composes, every link leads somewhere.

Commands run for real elsewhere; here they are parsed, their overrides read, and every grid point composed and built.
A block that ends in a refusal must be refused. Files that a page tells the reader to write are written first.
"""

import re
import shlex
from pathlib import Path

import pytest

from models.problems import RefusedError, raise_errors
from pipeline.arguments import VERBS, parse_arguments
from pipeline.compose import CONF, compose_grid
from pipeline.experiment import build_experiment
from pipeline.overrides import read_overrides

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
REFUSED = "refused"


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of the fenced blocks."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[str]:
    """The `npu-recipes` lines of a block, continued lines joined, as a shell reads them."""
    joined = re.sub(r"\\\n\s*", "", block)
    return re.findall(r"^(?:\$ )?(npu-recipes(?: .*)?)$", joined, re.MULTILINE)


def documented() -> list[tuple[str, str, bool]]:
    """(first page that shows it, command, whether it is shown as refused)."""
    found: dict[tuple[str, bool], str] = {}
    for page in PAGES:
        for _, block in blocks(page.read_text(encoding="utf-8")):
            for command in commands(block):
                found.setdefault((command, REFUSED in block), page.relative_to(ROOT).as_posix())
    return [(page, command, refused) for (command, refused), page in found.items()]


def in_comments() -> list[tuple[str, str, bool]]:
    """The same of the heads of configuration files and of the verbs' help."""
    found = [
        (path.relative_to(ROOT).as_posix(), command, False)
        for path in sorted(CONF.rglob("*.yaml"))
        for command in re.findall(r"^#\s+(npu-recipes .*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    helps = ((name, re.findall(r"^\s+(npu-recipes .*)$", verb.detail, re.MULTILINE)) for name, verb in VERBS.items())
    return found + [(f"help of {name}", command, False) for name, lines in helps for command in lines]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that a page shows under its name (`# my_conf/recipe/x.yaml` in its first line).

    `run_ascend_pt` stands for a profile of the reader's own; commands here are composed, and nothing reads it.
    """
    place = tmp_path_factory.mktemp("docs")
    (place / "run_ascend_pt").mkdir()
    for page in PAGES:
        for language, block in blocks(page.read_text(encoding="utf-8")):
            named = re.match(r"# (\S+\.yaml)\n", block)
            if language == "yaml" and named:
                file = place / named[1]
                file.parent.mkdir(parents=True, exist_ok=True)
                assert not file.exists() or file.read_text(encoding="utf-8") == block, f"{named[1]} is shown twice"
                file.write_text(block, encoding="utf-8")
    return place


def check(command: str) -> None:
    """As far as a command line gets without loading a model.

    Raises:
        RefusedError: the command line is refused.
    """
    words = shlex.split(command, comments=True)[1:]
    words = words[: words.index(">")] if ">" in words else words
    arguments = parse_arguments(words)
    overrides, problems = read_overrides(arguments.tokens)
    raise_errors(problems)
    resumed = any(o.key == "sweep.resume" for o in overrides)  # the grid is in the ledger
    if arguments.help or resumed or arguments.verb not in ("run", "validate", "propose"):
        return
    folders = (*arguments.config_dirs, CONF)
    ours = [o for o in overrides if not o.key.startswith("hydra")]  # a launcher may not be installed here
    for point in compose_grid(ours, arguments.multirun, folders):
        raise_errors(build_experiment(point.config, point.sources(folders)).problems)


def _names(value: object) -> str | None:
    return value if isinstance(value, str) else None


@pytest.mark.parametrize(("where", "command", "refused"), [*documented(), *in_comments()], ids=_names)
def test_commands_are_accepted(
    where: str, command: str, refused: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    if refused:
        with pytest.raises(RefusedError):
            check(command)
    elif "[verb]" not in command:
        check(command)


@pytest.mark.parametrize(
    "command",
    [
        "npu-recipes check recipe=qwen3/decode_prefetch",
        "npu-recipes recipe=qwen3/decode_prefetch --sweep",
        "npu-recipes recipe=qwen/decode_prefetch",
        "npu-recipes recipe=qwen3/decode_prefetch recipe.prefetch.coefficent=0.5",
        "npu-recipes recipe=qwen3/decode_prefetch recipe.prefetch.coefficient=0.5,0.7",
        "npu-recipes -m recipe=qwen3/decode_prefetch deployment.batch_size=4,none",
    ],
)
def test_a_wrong_command_is_noticed(command: str) -> None:
    with pytest.raises(RefusedError):
        check(command)


def test_the_pages_show_commands_of_every_verb() -> None:
    shown = {command.split()[1] for _, command, _ in documented() if " " in command}
    assert {name for name, verb in VERBS.items() if verb.ready and name != "run"} <= shown
    assert len(documented()) > 40


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, fragment in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        file = page.parent / target if target else page
        assert file.exists(), target
        if fragment:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert fragment in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}, fragment


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    """Paths like `models/convert.py` in the text."""
    text = page.read_text(encoding="utf-8")
    folders = "benchmarks|conf|docs|models|pipeline|tests|transforms"
    for name in re.findall(rf"`((?:{folders})/[\w./-]+)`", text):
        if not re.search(r"[<>*{}]", name):
            assert (ROOT / name).exists(), name


def test_pages_hold_no_places_of_one_machine() -> None:
    for page in PAGES:
        assert not re.findall(r"/(?:tmp|home|root|work|usr|opt)/\S*", page.read_text(encoding="utf-8")), page.name
