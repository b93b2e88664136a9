"""Caches of transformers models as the NPU has them: written in place, a row per token.

The library's own caches grow by copying everything, which no served model does.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from models.hf.patches import patched
from models.kernels import Cost, kernel
from models.ops import costs


def _write_cost(update: Any, cache: Any, *states: Any, **_: Any) -> Cost:
    """Reads the new rows and writes them, not the cache."""
    return Cost(other_bytes=2.0 * costs.tensor_bytes(*(s for s in states if isinstance(s, Tensor))))


@kernel("ScatterPaKvCache", "vector", _write_cost)
def _write(update: Any, cache: Any, *states: Any, **kwargs: Any) -> Any:
    return update(cache, *states, **kwargs)


@kernel("InplaceUpdate", "vector")
def _shift(update: Any, cache: Any, *states: Any, **kwargs: Any) -> Any:
    return update(cache, *states, **kwargs)


@contextmanager
def cached_in_place(module: nn.Module) -> Iterator[None]:
    """Every cache of the library writes rows, shifts convolution windows and leaves recurrent states in place."""
    from transformers.cache_utils import Cache

    changes: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("update", lambda update: _marked(_write, update)),
        ("update_indexer", lambda update: _marked(_write, update)),
        ("update_conv_state", lambda update: _marked(_shift, update)),
        ("update_recurrent_state", _keeper),
    )
    with ExitStack() as stack:
        for name, change in changes:
            if hasattr(Cache, name):
                stack.enter_context(patched(Cache, name, change(getattr(Cache, name))))
        yield


def _marked(mark: Any, update: Any) -> Any:
    def write(cache: Any, *states: Any, **kwargs: Any) -> Any:
        return mark(update, cache, *states, **kwargs)

    return write


def _keeper(update: Any) -> Any:
    """Recurrent kernels write the state where it is: it is not copied afterwards."""

    def keep(cache: Any, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Tensor:
        layer = cache.layers[layer_idx]
        if not layer.is_recurrent_states_initialized[state_idx]:
            return update(cache, recurrent_states, layer_idx, state_idx, **kwargs)
        layer.recurrent_states[state_idx] = recurrent_states
        return recurrent_states

    return keep
