"""`model=hf/<model_type>`: one option of the group `model` for every causal language model of transformers.

Hydra knows one file, `conf/model/hf.yaml`. The rest of the name becomes overrides, so that a launcher's worker and a
recomposed run need nothing registered.
"""

from collections.abc import Mapping

from models.hf.types import GROUP, is_transformers
from models.problems import Problem

DEPLOYMENT = "unsharded"  # the only one that such a model has


def option_name(group: str, name: str | None) -> str | None:
    """The option whose file Hydra reads: `hf` for `hf/llama`."""
    return GROUP if group == "model" and name and is_transformers(name) else name


def hydra_choice(group: str, name: str) -> list[str]:
    """Hydra's overrides that choose an option."""
    option = option_name(group, name)
    if option == name:
        return [f"{group}={name}"]
    return [f"{group}={option}", f"++model.name={name}", f"++model.architecture={name}"]


def choice_problems(chosen: Mapping[str, str]) -> list[Problem]:
    """What is wrong with the name of a transformers model; it is imported only where one is chosen."""
    name = chosen.get("model") or ""
    model_type = name.partition("/")[2]
    if not is_transformers(name) or name == GROUP:
        return []
    from models.hf.types import type_problem

    problem = type_problem(model_type)
    return [problem] if problem else []


def default_deployment(chosen: Mapping[str, str]) -> dict[str, str]:
    """The deployment of a transformers model for which neither the recipe nor the command line names one."""
    return {"deployment": DEPLOYMENT} if is_transformers(chosen.get("model") or "") else {}
