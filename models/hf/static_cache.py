"""Which models of transformers decode with a cache that is allocated before the step (`model.cache=static`).

Whether one does is tried on its tiny model, not looked up: `StaticCache` knows some kinds of layers only, some classes
keep a cache of their own, and some mask what was not written yet as if it were text.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from models.hf.stepping import SHORT, State, Stepper
from models.problems import Problem, RefusedError

_FIX = (
    "Leave model.cache=dynamic; SuperKernel then needs another model: one of ours, or a type whose cache can be static."
)
_TOLERANCE = 1e-3  # float32, of logits near one; other arithmetic gives about 1e-6, unmasked places 1e-2 and more


def check_static(module: nn.Module, dynamic: Stepper) -> None:
    """A prompt and two steps with a static cache, compared with the dynamic one.

    Args:
        module: the tiny model, on a real device.
        dynamic: runs it with the cache it would take itself.

    Raises:
        RefusedError: the cache can't be made, is not used, moves or grows during a step, or changes the results.
    """
    static = Stepper(module, dynamic.deployment, static=True)
    if "cache" not in static.parameters:
        raise _refused(module, "its forward takes no cache of the library: it keeps a state of its own")
    try:
        with torch.no_grad():
            tokens, state = static.prompt(SHORT, seed=1), State()
            expected = State()
            for step in range(3):
                before = dict(_places(state.carried.get("cache")))
                right, expected = dynamic.step(module, tokens, expected)
                given, state = static.step(module, tokens, state)
                after = dict(_places(state.carried.get("cache")))
                if not _is_static(state.carried.get("cache")) or not after:
                    raise _refused(module, "it does not write into the cache that it is given")
                if step and before != after:
                    name = next(n for n in (*after, *before) if before.get(n) != after.get(n))
                    raise _refused(module, f"{name} of its cache is allocated anew by a decode step")
                if not torch.allclose(given, right, rtol=_TOLERANCE, atol=_TOLERANCE):
                    off = float((given - right).abs().max())
                    what = "the prefill" if step == 0 else f"decode step {step}"
                    raise _refused(
                        module, f"its logits differ by up to {off:.2g} in {what} from those with the cache of its own"
                    )
                tokens = dynamic.next_tokens(right)
    except RefusedError:
        raise
    except KeyError as error:
        raise _refused(module, f"StaticCache has no layer of the kind {error}") from error
    except Exception as error:  # whatever a class raises about a cache that it does not expect
        why = " ".join(str(error).split())[:300]
        raise _refused(module, f"it fails: {type(error).__name__}: {why}") from error


def _is_static(cache: Any) -> bool:
    from transformers import StaticCache

    return isinstance(cache, StaticCache)


def _places(cache: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Name, shape and address of every tensor of a cache that holds more than a count."""
    for i, layer in enumerate(getattr(cache, "layers", ())):
        for name, value in vars(layer).items():
            values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
            for j, tensor in enumerate(values):
                if isinstance(tensor, Tensor) and tensor.ndim:
                    yield f"{name} {j} of layer {i}", (tuple(tensor.shape), tensor.data_ptr())


def _refused(module: nn.Module, why: str) -> RefusedError:
    message = f"{type(module).__name__} can't decode with a static cache: {why}"
    return RefusedError([Problem("error", "no-static-cache", message, _FIX, "model.cache")])
