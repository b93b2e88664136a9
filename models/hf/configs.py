"""From a model's YAML to transformers' configuration: defaults or a folder's config.json, overrides applied."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from models.hf.families import COMPLETE, DECODER, DEFAULT
from models.hf.quiet import quiet
from models.hf.tiny import laid_over, layer_count, tiny_values
from models.hf.types import config_class
from models.problems import Problem, RefusedError
from models.records import unknown_key

# Of a checkpoint: its weights are read, or not, by us.
_NOT_OF_THE_MODEL = ("quantization_config", "torch_dtype", "dtype", "transformers_version")


def full_config(model_type: str, overrides: Mapping[str, Any], stored: Mapping[str, Any] | None = None) -> Any:
    """The configuration of a model at full size.

    Args:
        model_type: one of `causal_lm_types()`.
        overrides: fields to change, nested as in config.json.
        stored: the content of a config.json; None for the type's defaults.

    Raises:
        RefusedError: unknown fields, or values that the configuration's class refuses.
    """
    cls = config_class(DECODER.get(model_type, model_type) if stored is None else model_type)
    values = copy.deepcopy(dict(DEFAULT.get(model_type, {}) if stored is None else stored))
    values = {name: value for name, value in values.items() if name not in _NOT_OF_THE_MODEL}
    base = _make(cls, values, "model.config")
    _check_names(base, overrides, "model.config")
    values = _merged(values, base.to_dict(), overrides)
    config = _make(cls, values, "model.config")
    missing = _missing(config)
    return _make(cls, laid_over(values, missing), "model.config") if missing else config


def tiny_config(config: Any, overlay: Mapping[str, Any]) -> Any:
    """The tiny configuration of a full one, with `model.tiny` over the general rules.

    Raises:
        RefusedError: unknown fields, or values that the configuration's class refuses.
    """
    _check_names(config, overlay, "model.tiny")
    return _make(type(config), laid_over(tiny_values(config), overlay), "model.tiny")


def _make(cls: Any, values: Mapping[str, Any], key: str) -> Any:
    try:
        with quiet():
            config = cls.from_dict(copy.deepcopy(dict(values)))
    except Exception as error:  # whatever a class raises about its values
        message = f"{cls.__name__} refuses the values: {_reason(error)}"
        raise RefusedError([Problem("error", "bad-model-config", message, f"Change {key}.FIELD.", key)]) from error
    if getattr(config, "is_decoder", None) is False:  # else it keeps no cache
        config.is_decoder = True
    return config


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _check_names(config: Any, given: Mapping[str, Any], key: str) -> None:
    problems = _unknown(config, given, key)
    if problems:
        raise RefusedError(problems)


def _unknown(config: Any, given: Mapping[str, Any], key: str) -> list[Problem]:
    known = set(vars(config)) | set(getattr(config, "attribute_map", None) or {}) | {"per_layer_config"}
    if dataclasses.is_dataclass(config):
        known |= {f.name for f in dataclasses.fields(config)}
    known = {name for name in known if not name.startswith("_")}
    problems = []
    for name, value in given.items():
        part = vars(config).get(name)
        if name not in known:
            problems.append(unknown_key(name, known, key))
        elif isinstance(value, Mapping) and hasattr(part, "to_dict"):
            problems += _unknown(part, value, f"{key}.{name}")
    return problems


def _merged(values: dict[str, Any], complete: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides over values. Fewer layers than before: lists with one entry per layer lose their ends."""
    before = layer_count(complete)
    after = layer_count(overrides)
    if before and after and after < before:
        for name, value in values.items():
            if isinstance(value, list) and len(value) == before:
                values[name] = value[:after]
        if isinstance(values.get("per_layer_config"), Mapping):
            values["per_layer_config"] = {k: v for k, v in values["per_layer_config"].items() if int(k) < after}
    for name, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(complete.get(name), Mapping):
            inside = values.get(name) if isinstance(values.get(name), Mapping) else complete[name]
            values[name] = _merged(copy.deepcopy(dict(inside or {})), complete[name], value)
        else:
            values[name] = value
    return values


def _missing(config: Any) -> dict[str, Any]:
    """What a configuration leaves open although the model needs it."""
    values = config.to_dict()
    missing: dict[str, Any] = {}
    heads, hidden = values.get("num_attention_heads"), values.get("hidden_size")
    if isinstance(heads, int) and isinstance(hidden, int):
        derived = {"num_key_value_heads": heads, "head_dim": hidden // heads}
        missing = {k: v for k, v in derived.items() if k in values and values[k] is None}
    for name, value in COMPLETE.get(config.model_type, {}).items():
        if values.get(name) is None or isinstance(value, Mapping):
            missing[name] = copy.deepcopy(value)
    for name in getattr(config, "sub_configs", None) or {}:
        part = vars(config).get(name)
        inside = _missing(part) if hasattr(part, "to_dict") else {}
        if inside:
            missing[name] = laid_over(part.to_dict(), inside)
    return missing
