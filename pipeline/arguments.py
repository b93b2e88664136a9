"""The command line's words: verb, positional paths, flags, overrides."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.problems import Problem, RefusedError, hint


@dataclass(frozen=True)
class Verb:
    """What one verb does, for the help and the parser."""

    summary: str
    detail: str
    positional: str = ""
    overrides: bool = True
    sweeps: bool = False
    ready: bool = True


VERBS: dict[str, Verb] = {
    "run": Verb(
        "one trial, or a sweep with -m",
        "Realise the recipe as a source change, verify it, forecast the gain, and write everything to one directory.\n"
        "With -m, every value of `key=a,b,c` (and every combination of several) is a trial of its own.\n\n"
        "  npu-recipes recipe=longcat_flash/decode_prefetch\n"
        "  npu-recipes -m recipe=longcat_flash/decode_prefetch recipe.prefetch.coefficient=0.5,0.7,1.0\n"
        "  npu-recipes -m recipe=longcat_flash/decode_prefetch 'recipe.prefetch.only=[router],[gate_up_0]'",
        sweeps=True,
    ),
    "validate": Verb(
        "recipe against model, no device: matches, sizes, problems",
        "Print what every pattern of the recipe matches, with sizes, shares of L2 and windows. Writes nothing.\n\n"
        "  npu-recipes validate recipe=longcat_flash/decode_prefetch deployment=unsharded\n"
        "  npu-recipes validate recipe=longcat_flash/decode_prefetch +model.config.hidden_size=4096",
        sweeps=True,
    ),
    "propose": Verb(
        "a Markdown design proposal with the diff and its patch hash",
        "Files, switch route, insertion points, sizes, dependencies and the diff, for a review. Writes nothing.\n\n"
        "  npu-recipes propose recipe=longcat_flash/decode_prefetch > proposal.md",
    ),
    "reproduce": Verb(
        "rerun an output directory and compare",
        "Run the trial of DIR again from its own configuration and compare plan, diff and metrics. Writes nothing.\n"
        "Exit code 1 if anything differs: a result, the configuration, a recipe or a source.\n"
        "DIR may be a sweep: then every trial of it is run again.\n\n"
        "  npu-recipes reproduce outputs/2026-01-31/12-00-00-1a2b3c",
        positional="DIR",
    ),
    "list": Verb(
        "models, recipes, deployments, hardware, transforms",
        "Print what the config groups hold and which transforms there are.\n\n  npu-recipes list\n"
        "  npu-recipes list recipes",
        positional="[GROUP]",
    ),
    "analyze": Verb(
        "profile -> roofline, windows, candidates",
        "Read a profile of torch_npu or msprof, find its decode steps, classify every kernel, and say for each\n"
        "memory-bound MatMul after which kernel its weight could be prefetched, and how much of it. Writes nothing,\n"
        "except with output=DIR: report.md, analysis.json and the roofline plot.\n\n"
        "  npu-recipes analyze profile=PATH hardware=atlas_a2\n"
        "  npu-recipes analyze profile=PATH output=analysis report.language=zh\n"
        "  npu-recipes analyze profile=PATH analysis.phase=decode analysis.coefficient=0.7 format=json",
    ),
    "compare": Verb(
        "baseline profile against optimised profile: the checklist, measured",
        "Read two profiles of the same model, without and with the change, pair their kernels, and answer from both:\n"
        "targets faster? critical path shorter? kernels before the targets stable? new long tails? Every difference\n"
        "has a 95 % interval over the steps. Writes nothing, except with output=DIR:\n"
        "report.md, comparison.json, and a plot.\n"
        "A path is what analyze profile= takes: a CSV file, a run, or a folder of many ranks.\n\n"
        "  npu-recipes compare profiles/off profiles/on hardware=atlas_a3\n"
        "  npu-recipes compare profiles/off profiles/on 'compare.targets=[MatMulV3 4/7]' analysis.rank=3\n"
        "  npu-recipes compare off.csv on.csv output=comparison report.language=zh",
        positional="BASELINE OPTIMISED",
    ),
    "apply": Verb("rewrite a source tree", "", ready=False),
    "extract": Verb("hand-written prefetch of a tree -> recipe", "", ready=False),
    "promote": Verb("write the winner as a committed recipe", "", positional="DIR", ready=False),
}


@dataclass(frozen=True)
class Arguments:
    """A parsed command line.

    Attributes:
        verb: one of `VERBS`.
        positional: paths and names after the verb.
        tokens: overrides as typed.
        multirun, help: the flags.
        config_dirs: further config folders, which win over ours.
        words: the whole command line.
    """

    verb: str
    positional: tuple[str, ...]
    tokens: tuple[str, ...]
    multirun: bool
    help: bool
    config_dirs: tuple[Path, ...]
    words: tuple[str, ...]


def parse_arguments(words: Sequence[str]) -> Arguments:
    """Split the command line; flags and the verb may stand anywhere.

    Raises:
        RefusedError: unknown verb or flag, a word that is neither verb, path nor override, too many paths.
    """
    problems: list[Problem] = []
    verb: str | None = None
    bare: list[str] = []
    tokens: list[str] = []
    folders: list[Path] = []
    multirun = wants_help = False
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-m", "--multirun"):
            multirun = True
        elif word in ("-h", "--help"):
            wants_help = True
        elif word.startswith("--config-dir"):
            _, equals, value = word.partition("=")
            value = value if equals else (rest.pop(0) if rest else "")
            if Path(value).is_dir() and value:
                folders.append(Path(value).resolve())
            else:
                problems.append(Problem("error", "no-config-dir", f"--config-dir: `{value}` is no directory"))
        elif word.startswith("-") and not word.startswith("-="):
            flags = ["-m", "--multirun", "-h", "--help", "--config-dir"]
            message = f"there is no flag `{word}`.{hint(word, flags)}"
            fix = "Flags: -m (sweep), --help, --config-dir DIR; everything else is key=value."
            problems.append(Problem("error", "unknown-flag", message, fix))
        elif verb is not None and VERBS[verb].positional and (Path(word).exists() or not _is_override(word)):
            bare.append(word)
        elif _is_override(word):
            tokens.append(word)
        elif word in VERBS and verb is None:
            verb = word
        elif verb is None and word == "help":
            wants_help = True
        else:
            problems.append(_not_a_word(word, verb))
    chosen = verb or "run"
    if not wants_help and not problems:
        problems += _check(chosen, bare, multirun)
    if problems and not wants_help:
        raise RefusedError(problems)
    return Arguments(chosen, tuple(bare), tuple(tokens), multirun, wants_help, tuple(folders), tuple(words))


def help_text(arguments: Arguments) -> str:
    """The help of the verb that was typed, or of all."""
    if arguments.verb in arguments.words:
        verb = VERBS[arguments.verb]
        if not verb.ready:
            return f"npu-recipes {arguments.verb}: {verb.summary}. Not in this version.\n"
        flag = " [-m]" if verb.sweeps else ""
        usage = f"npu-recipes {arguments.verb} {verb.positional}".rstrip()
        return f"usage: {usage}{flag} [key=value ...]\n\n{verb.summary}\n\n{verb.detail}\n\n{_KEYS}"
    verbs = "\n".join(f"  {n:<10} {v.summary}{'' if v.ready else ' (later version)'}" for n, v in VERBS.items())
    return (
        "usage: npu-recipes [verb] [-m] [key=value ...]        (without a verb: run)\n\n"
        "Weight-prefetch and SuperKernel recipes for LLM decode on Ascend NPUs:\n"
        "declare, prove, forecast, reproduce.\n\n"
        f"verbs\n{verbs}\n\n{_KEYS}"
    )


_KEYS = """\
keys
  recipe, model, deployment, hardware, runtime, backend
                               config groups: `npu-recipes list` shows their options. A recipe selects its own model,
                               deployment, hardware and runtime; the last three can be replaced.
  recipe.KEY, model.config.KEY, deployment.KEY, hardware.KEY
                               any value inside; adding and changing are written alike:
                               recipe.prefetch.coefficient=0.7
                               recipe.prefetch.targets.router.coefficient=0.7
                               'recipe.prefetch.targets.x={weight: layers.{i}.a, dependency: layers.{i}.b}'
                               '~recipe.prefetch.targets.x'        (delete)
  verify.compiles|numerics|graph   true | false | auto
  transform                    source | wrap
  format, report.language      text | json; en | zh
  output                       directory for results (outputs; of analyze and compare: none)
  profile, analysis.KEY        of analyze: the profiler's output; coefficient, phase, decode_rows, rank, top
  compare.targets              of compare: which kernels are prefetched (all memory-bound ones)
  trial.timeout, trial.fresh, sweep.fail_fast, sweep.resume
                               seconds; run finished trials again; stop after a failure; sweep directory to continue

flags
  -m, --multirun               a trial for every combination of `key=a,b`
  --config-dir DIR             a folder with your own recipe/, deployment/, ... beside the built-in ones
  -h, --help                   of a verb: npu-recipes VERB --help

exit codes: 0 it ran, whatever the verdict; 1 something failed or differs; 2 refused before anything ran
"""


def _is_override(word: str) -> bool:
    return "=" in word or word.startswith(("~", "+"))


def _not_a_word(word: str, verb: str | None) -> Problem:
    known = [name for name, v in VERBS.items() if v.ready]
    fix = f"Verbs: {', '.join(known)}. Everything else is written key=value."
    if verb is None:
        return Problem("error", "unknown-verb", f"there is no verb `{word}`.{hint(word, known)}", fix)
    return Problem("error", "unexpected-word", f"`{word}` is not an override (key=value)", fix)


def _check(verb: str, bare: Sequence[str], multirun: bool) -> list[Problem]:
    rule = VERBS[verb]
    if not rule.ready:
        fix = f"Verbs of this version: {', '.join(n for n, v in VERBS.items() if v.ready)}."
        return [Problem("error", "verb-not-available", f"the verb `{verb}` is not in this version", fix)]
    problems = []
    if multirun and not rule.sweeps:
        problems.append(Problem("error", "no-sweep", f"`{verb}` does not sweep", "Leave -m away."))
    paths = 0 if rule.positional.startswith("[") else len(rule.positional.split())
    if paths and len(bare) != paths:
        found = "none was" if not bare else "one was" if len(bare) == 1 else f"{len(bare)} were"
        what = "one directory" if paths == 1 else "two profiles"
        message = f"`{verb}` takes {what}, and {found} given"
        problems.append(Problem("error", "bad-arguments", message, f"npu-recipes {verb} {rule.positional}"))
    return problems
