"""Shrink any configuration: the same structure, one layer of each kind, small numbers."""

import copy
import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from models.hf.families import TINY
from models.hf.tiny_fields import HEAD_DIM, KV_COUNTS, LAYERS, RULES

MOST_KINDS = 4  # of layers that are kept
_LONGEST_RUN = 6
_OTHER_MIXERS = ("linear_attention", "conv", "mamba", "mamba2", "recurrent", "hybrid")
_NOT_DIMENSIONS = ("transformers_version", "architectures", "dtype", "id2label", "label2id", "quantization_config")
_TOKEN = re.compile(r"_token_(id|index)$|^(pad|bos|eos|unk|mask)_index$")


def tiny_values(config: Any) -> dict[str, Any]:
    """Keyword arguments with which the configuration's class makes the tiny configuration.

    Sizes shrink by what their names count (`tiny_fields`), lists with one entry per layer keep the entries of the kept
    layers, and sub-configurations shrink in the same way. `families` corrects what names can't tell.

    Args:
        config: a configuration of transformers, complete.
    """
    values = _shrunk(config.to_dict(), type(config))
    return laid_over(values, copy.deepcopy(TINY.get(config.model_type, {})))


def laid_over(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `values`, also inside mappings; a mapping by layer is replaced."""
    merged = dict(values)
    for name, value in over.items():
        inside = merged.get(name)
        both = isinstance(value, Mapping) and isinstance(inside, Mapping) and name != "per_layer_config"
        merged[name] = laid_over(inside, value) if both else value  # type: ignore[arg-type]
    return merged


def kept_layers(values: Mapping[str, Any]) -> list[int]:
    """The first layer of every kind, 2 to 4 of them, in order. A layer's kind is what per-layer lists say of it.

    Where the kinds mix tokens in ways of their own (a state space, say), it is the first run of layers in which every
    kind comes behind every kind that it follows anywhere, if few are enough: what a layer does for the next one depends
    on both.
    """
    count = layer_count(values)
    if count is None:
        return []
    lists = [v for v in values.values() if _per_layer(v, count)]
    overrides = values.get("per_layer_config") or {}
    different = {int(index): str(value) for index, value in overrides.items()}
    kinds: dict[str, int] = {}
    sequence = [str([v[layer] for v in lists]) + different.get(layer, "") for layer in range(count)]
    for layer, kind in enumerate(sequence):
        kinds.setdefault(kind, layer)
    if any(_mixes_otherwise(entry) for v in lists for entry in v) and len(kinds) > 1:
        run = _run_with_all_neighbours(sequence)
        if run is not None:
            return list(run)
    kept = sorted(kinds.values())[:MOST_KINDS]
    more = (layer for layer in range(count) if layer not in kept)
    while len(kept) < min(2, count):
        kept.append(next(more))
    return sorted(kept)


def _mixes_otherwise(entry: Any) -> bool:
    """Whether a layer type is of another structure than the attentions, which differ by their masks only."""
    return isinstance(entry, str) and entry in _OTHER_MIXERS


def _run_with_all_neighbours(kinds: Sequence[str]) -> range | None:
    """The shortest run of layers with every pair of neighbouring kinds, the first such; None if it is long."""
    pairs = list(pairwise(kinds))
    for length in range(2, _LONGEST_RUN + 1):
        for start in range(len(kinds) - length + 1):
            if set(pairs[start : start + length - 1]) == set(pairs):
                return range(start, start + length)
    return None


def layer_count(values: Mapping[str, Any]) -> int | None:
    """Number of decoder layers that a configuration says; None if it says none."""
    return next((values[name] for name in LAYERS if isinstance(values.get(name), int)), None)


def _shrunk(values: Mapping[str, Any], cls: type | None) -> dict[str, Any]:
    derived, fields = _derived(cls), _fields(cls)
    kept, count = kept_layers(values), layer_count(values)
    small: dict[str, Any] = {}
    for name, value in values.items():
        if name in _NOT_DIMENSIONS or name.startswith("_") or name == "model_type":
            continue
        if fields and name not in fields:
            continue  # the class sets it from its fields
        sub = (getattr(cls, "sub_configs", None) or {}).get(name)
        if isinstance(value, Mapping) and (sub is not None or "model_type" in value):
            small[name] = _shrunk_part(value, sub)
        elif name == "per_layer_config" and value:
            small[name] = _shrunk_overrides(value, values, kept)
        elif name in LAYERS and isinstance(value, int):
            small[name] = max(2, len(kept)) if value >= 2 else value
        elif count is not None and _per_layer(value, count):
            per_layer = [_size(name.removesuffix("_per_layer"), value[layer], values) for layer in kept]
            small[name] = type(value)(per_layer)
        elif name.startswith("rope") and isinstance(value, Mapping):
            small[name] = _rope(value)
        else:
            # What the class derives, it derives again; but grouped heads of a checkpoint stay grouped.
            if name not in derived or name in KV_COUNTS:
                small[name] = _size(name, value, values)
    return _with_tokens(small)


def _shrunk_part(value: Mapping[str, Any], sub: Any) -> Any:
    from models.hf.types import config_class, model_types

    if value.get("model_type") in model_types():
        sub = config_class(str(value["model_type"]))
    small = laid_over(_shrunk(value, sub), copy.deepcopy(TINY.get(str(value.get("model_type")), {})))
    return {**small, "model_type": value["model_type"]} if "model_type" in value else small


def _shrunk_overrides(overrides: Mapping[Any, Any], values: Mapping[str, Any], kept: Sequence[int]) -> dict[int, Any]:
    """`per_layer_config` of the kept layers. A size that differs from the model's stays different."""
    found = {}
    for index, fields in overrides.items():
        if int(index) in kept:
            small = {name: _size(name, value, values) for name, value in fields.items()}
            for name, value in fields.items():
                if (
                    isinstance(value, int)
                    and value != values.get(name)
                    and small[name] == _size(name, values.get(name), values)
                ):
                    small[name] = 2 * small[name] if value > (values.get(name) or 0) else max(1, small[name] // 2)
            found[kept.index(int(index))] = small
    return found


def _fields(cls: type | None) -> Mapping[str, Any]:
    """Field name -> default; empty if the class does not say."""
    if cls is None or not dataclasses.is_dataclass(cls):
        return {}
    aliases = dict.fromkeys((getattr(cls, "attribute_map", None) or {}).values(), dataclasses.MISSING)
    return aliases | {f.name: f.default for f in dataclasses.fields(cls)} | {"per_layer_config": {}}


@cache
def _derived(cls: type | None) -> frozenset[str]:
    """Fields that the class fills by itself when they are not given."""
    fields = {name for name, default in _fields(cls).items() if default is None}
    if not fields or cls is None:
        return frozenset()
    try:
        filled = cls().to_dict()
    except Exception:  # a class that is not complete by itself
        return frozenset(fields)
    return frozenset(name for name in fields if filled.get(name) is not None)


def _per_layer(value: Any, count: int) -> bool:
    return isinstance(value, list | tuple) and count > 2 and len(value) == count


def _size(name: str, value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and name in RULES:
        return RULES[name](value, values)
    if isinstance(value, Mapping):
        return {key: _size(key, item, values) for key, item in value.items()}
    return value


def _rope(value: Mapping[str, Any]) -> dict[str, Any]:
    """Frequencies for the tiny head dimension; the base and the kind of scaling stay."""
    small = dict(value)
    for name, item in value.items():
        if isinstance(item, Mapping):
            small[name] = _rope(item)
        elif name == "mrope_section":
            small[name] = [2, 1, 1][: len(item)]
        elif name in ("long_factor", "short_factor"):
            small[name] = [1.0] * (HEAD_DIM // 2)
        elif name == "original_max_position_embeddings":
            small[name] = 128
    return small


def _with_tokens(values: dict[str, Any]) -> dict[str, Any]:
    """Special tokens inside the tiny vocabulary, different ones where they were different."""
    text = values.get("text_config")
    vocabulary = values.get("vocab_size", text.get("vocab_size") if isinstance(text, Mapping) else None)
    if not isinstance(vocabulary, int):
        return values
    numbers: dict[int, int] = {}
    for name, value in values.items():
        tokens = value if isinstance(value, list | tuple) else [value]
        if _TOKEN.search(name) and all(isinstance(token, int) for token in tokens):
            small = [t if t < vocabulary else numbers.setdefault(t, 3 + len(numbers)) for t in tokens]
            values[name] = small if isinstance(value, list | tuple) else small[0]
    return values
