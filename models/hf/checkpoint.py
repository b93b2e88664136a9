"""A checkpoint's own weights for numerics, where they are few enough; else the tiny model with seeded weights."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from models.hf.quiet import quiet
from models.hf.safetensors_files import INDEX, SINGLE, read_files
from models.hf.types import class_name
from models.problems import Problem, RefusedError, raise_errors

MOST_VALUES = 256 * 2**20  # 1 GiB in float32
_KEY = "model.path"


@dataclass(frozen=True)
class OwnWeights:
    """Whether the model that runs has the weights of a folder.

    Attributes:
        use: it has.
        problems: warnings, among them which weights are used.
    """

    use: bool
    problems: tuple[Problem, ...]


def own_weights(path: str, wants_tiny: bool) -> OwnWeights:
    """Decide which weights numerics run on.

    Args:
        path: the checkpoint folder.
        wants_tiny: `model.tiny` was given.

    Raises:
        RefusedError: the weights would be used, and files are missing, cut short, or of another kind.
    """
    folder = Path(path).expanduser()
    if wants_tiny:
        return _seeded("model.tiny is given")
    files = read_files(folder)
    if not files.names and not files.problems:
        pickled = sorted(p.name for p in folder.glob("*.bin"))
        why = f"only pickled ones ({pickled[0]}), which are not read" if pickled else f"no {SINGLE} and no {INDEX}"
        return _seeded(f"the folder has {why}")
    if files.values > MOST_VALUES:
        found = _seeded(
            f"the checkpoint has {files.values / 1e9:.1f} billion weights, and {MOST_VALUES:,} are the most"
        )
        return replace(found, problems=(*found.problems, *(replace(p, severity="warning") for p in files.problems)))
    raise_errors(_with_way_out(files.problems))
    message = f"numerics run on the checkpoint's own weights ({files.values:,}, in float32)"
    return OwnWeights(True, (Problem("warning", "own-weights", message, "", _KEY),))


def load_own(path: str, config: Any, model_type: str) -> nn.Module:
    """The model with the weights of a folder, in float32 on the CPU, with eager attention.

    Raises:
        RefusedError: weights are missing or have other shapes.
    """
    import torch
    import transformers

    cls = getattr(transformers, class_name(model_type))
    folder = str(Path(path).expanduser())
    try:
        with quiet():
            module, found = cls.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                attn_implementation="eager",
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as error:  # whatever a modeling file or a reader raises
        why = " ".join(str(error).split())[:300]
        message = f"the weights can't be put into {cls.__name__}: {type(error).__name__}: {why}"
        raise RefusedError(
            _with_way_out([Problem("error", "cannot-load-weights", message, "", _KEY, folder)])
        ) from error
    missing = sorted(found.get("missing_keys") or ())
    if missing:
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        message = f"{len(missing)} weights of {cls.__name__} are not in the checkpoint: {some}"
        raise RefusedError(_with_way_out([Problem("error", "missing-weight", message, "", _KEY, folder)]))
    return module.eval().requires_grad_(False)


def _seeded(why: str) -> OwnWeights:
    message = f"numerics run on a tiny model with seeded weights: {why}"
    return OwnWeights(False, (Problem("warning", "seeded-weights", message, "", _KEY),))


def _with_way_out(problems: Any) -> list[Problem]:
    """Every problem's fix also names the way to do without the weights."""
    way = "Or run without them: model.tiny.num_hidden_layers=2 takes a tiny model with seeded weights."
    return [replace(p, fix=f"{p.fix} {way}".strip()) for p in problems]
