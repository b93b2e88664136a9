"""The console script: parse, dispatch, print. Results go to stdout, everything else to stderr."""

import contextlib
import errno
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from models.problems import Problem, RefusedError
from pipeline.arguments import VERBS, Arguments, help_text, parse_arguments
from pipeline.progress import say, shortened

# Wide enough for the sweep table where the width of the terminal is not known (a pipe, a CI log).
_PIPE_WIDTH = 240
# Trouble of the place where results go, not ours.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES)


@dataclass(frozen=True)
class Outcome:
    """What a verb found.

    Attributes:
        code: exit code.
        data: the JSON object of `format=json`.
        view: what is printed in text: a string (as it is) or a rich renderable.
        problems: warnings, for stderr.
    """

    code: int
    data: dict[str, Any]
    view: Any
    problems: Sequence[Problem] = ()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the words after the program's name; those of the process if None.

    Returns:
        0: it ran, whatever the verdict; 1: something failed or differs; 2: refused before anything ran.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    out = sys.stdout
    as_json = _wants_json(words)
    if isinstance(out, io.TextIOWrapper):  # a terminal or a path of another encoding is no reason to end
        out.reconfigure(errors="backslashreplace")
    try:
        # Libraries print to stdout too; it belongs to the result alone.
        with contextlib.redirect_stdout(sys.stderr):
            outcome = _dispatch(words)
    except RefusedError as refused:
        outcome = Outcome(2, _refusal(refused), None, refused.problems)
    except KeyboardInterrupt:
        say("interrupted; a sweep goes on with the same command (finished trials are taken over)")
        outcome = Outcome(1, {"status": "failed", "error": "interrupted"}, None)
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            outcome = _our_bug(error)
        else:
            say(f"can't go on: {error}")
            outcome = Outcome(1, {"status": "failed", "error": str(error)}, None)
    except Exception as error:
        outcome = _our_bug(error)
    try:
        _print(outcome, as_json, out)
        out.flush()
    except BrokenPipeError:  # the reader (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    return outcome.code


def _our_bug(error: Exception) -> Outcome:
    traceback.print_exc()
    say("this is a bug of npu-recipes, not of your input; please report it with the lines above")
    message = f"{type(error).__name__}: {error}"
    return Outcome(1, {"status": "failed", "error": message, "traceback": traceback.format_exc()}, None)


def _dispatch(words: Sequence[str]) -> Outcome:
    arguments = parse_arguments(words)
    if arguments.help:
        text = help_text(arguments)
        return Outcome(0, {"help": text}, text)
    verbs: dict[str, Callable[[Arguments], Outcome]] = {
        "run": _run,
        "validate": _validate,
        "propose": _propose,
        "reproduce": _reproduce,
        "list": _list,
        "analyze": _analyze,
        "compare": _compare,
    }
    assert set(verbs) == {name for name, verb in VERBS.items() if verb.ready}
    return verbs[arguments.verb](arguments)


def _run(arguments: Arguments) -> Outcome:
    from pipeline.progress import shown
    from pipeline.sweep import run
    from pipeline.tables import result_view

    result = run(arguments.tokens, arguments.multirun, arguments.words, _folders(arguments))
    report = shown(result.directory / "report.md")
    return Outcome(result.code, result.to_json(), result_view(result.trials, result.heading, report), result.problems)


def _validate(arguments: Arguments) -> Outcome:
    from pipeline.sweep import check_grid
    from pipeline.validate import run_validate

    checked = check_grid(arguments.tokens, arguments.multirun, _folders(arguments))
    data, view = run_validate(checked.prepared)
    return Outcome(0, data, view, checked.warnings)


def _propose(arguments: Arguments) -> Outcome:
    from pipeline.config_files import config_dir_words
    from pipeline.propose import run_propose
    from pipeline.sweep import check_grid

    folders = _folders(arguments)
    checked = check_grid(arguments.tokens, False, folders, rewrites=True)
    markdown, data = run_propose(checked.prepared[0], [*config_dir_words(folders), *checked.points[0].typed])
    return Outcome(0, data, markdown, checked.warnings)


def _reproduce(arguments: Arguments) -> Outcome:
    from pathlib import Path

    from pipeline.reproduce import reproduce, reproduction_view

    _only_output_keys(arguments)
    data = reproduce(Path(arguments.positional[0]), _folders(arguments))
    return Outcome(0 if data["same"] else 1, data, reproduction_view(data))


def _analyze(arguments: Arguments) -> Outcome:
    from pipeline.analyze import run_analyze
    from pipeline.analyze_view import analysis_view

    result = run_analyze(arguments.tokens, _folders(arguments))
    return Outcome(0, result.to_json(), analysis_view(result), result.problems)


def _compare(arguments: Arguments) -> Outcome:
    from pipeline.compare import run_compare
    from pipeline.compare_view import comparison_view

    result = run_compare(arguments.positional, arguments.tokens, _folders(arguments))
    return Outcome(0, result.to_json(), comparison_view(result), result.problems)


def _list(arguments: Arguments) -> Outcome:
    from pipeline.listing import as_text, listing

    _only_output_keys(arguments)
    found = listing(arguments.positional, _folders(arguments))
    return Outcome(0, {"status": "ok", **found}, as_text(found))


def _folders(arguments: Arguments) -> tuple[Any, ...]:
    from pipeline.compose import CONF

    return (*arguments.config_dirs, CONF)


def _only_output_keys(arguments: Arguments) -> None:
    """`list` and `reproduce` take `format=` only: anything else would silently do nothing."""
    problems = [
        Problem(
            "error",
            "no-overrides",
            f"`{token}` has no meaning for `{arguments.verb}`",
            "reproduce takes the configuration of its directory." if arguments.verb == "reproduce" else "",
            token.lstrip("+~").partition("=")[0],
        )
        for token in arguments.tokens
        if token.lstrip("+") not in ("format=json", "format=text")
    ]
    if problems:
        raise RefusedError(problems)


def _wants_json(words: Sequence[str]) -> bool:
    """`format=json` counts even where the rest of the command line is refused. The last one wins."""
    formats = [w.lstrip("+").partition("=")[2] for w in words if w.lstrip("+").startswith("format=")]
    return bool(formats) and formats[-1].strip("'\"") == "json"


def _refusal(refused: RefusedError) -> dict[str, Any]:
    return {"status": "refused", "problems": [_short(problem).to_json() for problem in refused.problems]}


def _short(problem: Problem) -> Problem:
    """A problem whose paths are relative where they can be."""
    file = None if problem.file is None else shortened(problem.file)
    return replace(problem, message=shortened(problem.message), fix=shortened(problem.fix), file=file)


def _print(outcome: Outcome, as_json: bool, out: TextIO) -> None:
    if as_json:
        ascii_only = (out.encoding or "").lower().replace("-", "") != "utf8"
        out.write(json.dumps(outcome.data, ensure_ascii=ascii_only, indent=1, default=str) + "\n")
        return
    for problem in outcome.problems:
        say(str(problem))
    if outcome.view is None:
        if outcome.code == 2:
            say("refused: nothing ran, nothing was written")
        return
    if isinstance(outcome.view, str):
        out.write(outcome.view if outcome.view.endswith("\n") else outcome.view + "\n")
        return
    from rich.console import Console

    known = out.isatty() or "COLUMNS" in os.environ
    console = Console(file=out, width=None if known else _PIPE_WIDTH, highlight=False)
    console.print(outcome.view)
