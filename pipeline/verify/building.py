"""How a rung gets at the transformed model: one callable for both realisations of a plan."""

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

# build(True): the transformed model with the switch on; build(False): the same with the switch off.
# A source transform returns a module of its own. A wrap changes the model it is given, so it returns a context
# manager that yields the model and undoes the wrapping at the end.
Build = Callable[[bool], nn.Module | AbstractContextManager[nn.Module]]


@contextmanager
def built(build: Build, switch: bool) -> Iterator[nn.Module]:
    """The transformed model, for the time of the block."""
    result = build(switch)
    if isinstance(result, nn.Module):
        yield result
    else:
        with result as module:
            yield module


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread for the time of the block.

    Tiny operators only lose by more (seven times the CPU time of a check with two), and the bits of a sum can depend on
    the number of threads, so what is compared must run on the same number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def explain(error: BaseException) -> str:
    """`Type: message (file:line)`; the place is the innermost frame of our own or the rewritten code."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}:{error.lineno})"
    message = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    # Frames of libraries say little: the innermost frame outside the installed packages is where to look.
    own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(sys.base_prefix)]
    if not (own or frames):
        return f"{type(error).__name__}: {message}"
    frame = (own or frames)[-1]
    return f"{type(error).__name__}: {message} ({frame.filename}:{frame.lineno}, in {frame.name})"
