"""Load a model: full size on `meta` for shapes and traces, tiny on CPU for numerics."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from models.architectures import ARCHITECTURES, Architecture
from models.deployment import Deployment
from models.hf.types import GROUP, is_transformers
from models.metadata import make_metadata
from models.problems import Problem, RefusedError, raise_errors
from models.records import read_record
from models.weights import fill

Size = Literal["full", "tiny"]

_CONF = Path(__file__).resolve().parents[1] / "conf"
SEEDED = "seeded weights"
_PROMPT_TOKENS = 5
_MAY_BE_ZERO = ("zero_expert_num", "first_k_dense_replace")


@dataclass(frozen=True)
class ModelSpec:
    """What `conf/model/<name>.yaml` says, overrides applied.

    Attributes:
        name: the config group's option, e.g. `longcat_flash`.
        architecture: key of `ARCHITECTURES`, or `hf/<model_type>` for a model of transformers.
        config: the full-size dimensions, names as in the checkpoint's config.json.
        tiny: overlay on `config` that shrinks the numbers and keeps the structure.
        path: checkpoint folder of a transformers model; None: the type's default configuration.
        cache: of a transformers model: `dynamic` is the one it makes itself, `static` has room for the whole context.
    """

    name: str
    architecture: str
    config: Mapping[str, Any]
    tiny: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = None
    cache: Literal["dynamic", "static"] = "dynamic"

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], file: str | None = None) -> "ModelSpec":
        """Read and check a model's YAML.

        Raises:
            RefusedError: with every problem of the file and of its `config` and `tiny` fields.
        """
        values, problems = read_record(cls, mapping, "model", file)
        name = values.get("architecture")
        if name is not None and is_transformers(name):
            from models.hf.specs import read_configs

            raise_errors(problems)
            values["architecture"] = f"{GROUP}/{read_configs(values, file).model_type}"
            return cls(**{**values, "name": values["architecture"] if values["name"] == GROUP else values["name"]})
        if values.get("path") is not None:
            fix = "Write model=hf model.path=DIR."
            problems.append(
                Problem("error", "bad-value", "only models of transformers have one", fix, "model.path", file)
            )
        if "cache" in mapping:
            fix = "Leave it out: the caches of our own models are static (paged)."
            problems.append(
                Problem("error", "bad-value", "only models of transformers have a choice", fix, "model.cache", file)
            )
        if name is not None and name not in ARCHITECTURES:
            near = difflib.get_close_matches(name, ARCHITECTURES, n=1)
            fix = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(sorted(ARCHITECTURES))}."
            message = f"unknown architecture {name!r}"
            problems.append(Problem("error", "unknown-architecture", message, fix, "model.architecture", file))
        elif name is not None and "config" in values:
            config_class = _config_class(ARCHITECTURES[name])
            config_problems = read_record(config_class, values["config"], "model.config", file)[1]
            config_problems += _not_positive(values["config"], "model.config", file)
            tiny = values.get("tiny", {})
            tiny_problems = read_record(config_class, {**values["config"], **tiny}, "model.tiny", file)[1]
            seen = {p.key.removeprefix("model.config") for p in config_problems if p.key}
            problems += config_problems
            problems += [p for p in tiny_problems if p.key and p.key.removeprefix("model.tiny") not in seen]
            problems += _not_positive(tiny, "model.tiny", file)
        raise_errors(problems)
        return cls(**values)


@dataclass
class LoadedModel:
    """A model that can be run, traced, rebuilt from rewritten source, and compared.

    Attributes:
        module: the whole model, in eval mode, parameters without gradients.
        python_module: the module whose file holds the model's classes, e.g. `models.longcat_flash`.
        root: FQN of the module that owns the decoder layer list (`""` if it is `module` itself).
        layers: name of the layer list below `root`, e.g. `layers`.
        size: `full` (meta) or `tiny` (CPU, seeded weights).
        deployment: how it is served; of a tiny model, the tiny deployment.
        problems: warnings about the model.
        weights: what the weights of a model with numbers are, in words.
    """

    spec: ModelSpec
    deployment: Deployment
    exe_mode: str
    module: nn.Module
    python_module: ModuleType
    root: str
    layers: str
    size: Size
    problems: tuple[Problem, ...] = ()
    weights: str = SEEDED

    def run(
        self,
        module: nn.Module | None = None,
        decode_steps: int = 3,
        before_decode: Callable[[], None] = lambda: None,
        seed: int = 1,
    ) -> list[Tensor]:
        """Prefill a seeded prompt of 5 tokens per sequence, then decode.

        Args:
            module: run this instead of `self.module` (same architecture, e.g. rebuilt from rewritten source).
            decode_steps: decode steps after the prefill.
            before_decode: called once, between the prefill and the first decode step.
            seed: of the prompt.

        Returns:
            The output (logits, or hidden states of an FFN-role model) of the prefill and of every step: one row per
            token of this die.
        """
        module = self.module if module is None else module
        served, step = self.deployment, self.deployment.query_length
        generator = torch.Generator().manual_seed(seed)
        inputs = self._prompt(served.batch_size * _PROMPT_TOKENS, generator)
        length = max(served.context_length, _PROMPT_TOKENS + decode_steps * step)
        outputs = []
        with torch.no_grad():
            caches = self._new_caches(length)
            past = 0
            for i in range(decode_steps + 1):
                if i == 1:
                    before_decode()
                tokens = _PROMPT_TOKENS if i == 0 else step
                outputs.append(self._step(module, inputs, caches, i == 0, past, tokens, length))
                past += tokens
                inputs = self._next_inputs(outputs[-1], tokens)
        return outputs

    def decode_once(self, module: nn.Module | None = None) -> Tensor:
        """One decode step with the deployment's batch and context on fresh caches (works on `meta`)."""
        module = self.module if module is None else module
        served, step = self.deployment, self.deployment.query_length
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            inputs = self._prompt(served.batch_size * step, generator)
            caches = self._new_caches(served.context_length)
            past = served.context_length - step
            return self._step(module, inputs, caches, False, past, step, served.context_length)

    def rebuild(self, python_module: ModuleType, **switches: Any) -> nn.Module:
        """The same model from another module's classes, sharing this model's state.

        Args:
            python_module: usually the rewritten sibling of `self.python_module`.
            switches: set on the config, e.g. `enable_prefetch=True`.
        """
        config = replace(self.module.config, **switches)  # type: ignore[type-var]
        architecture = ARCHITECTURES[self.spec.architecture]
        with torch.device("meta"):
            rebuilt = getattr(python_module, architecture.model_class)(config)
        for name, module in self.module.named_modules():
            twin = rebuilt.get_submodule(name)
            twin._parameters.update(module._parameters)
            twin._buffers.update(module._buffers)
        return rebuilt.eval()

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def _prompt(self, tokens: int, generator: torch.Generator) -> Tensor:
        config: Any = self.module.config
        if self.deployment.role == "ffn":
            hidden_states = torch.randn(tokens, config.hidden_size, generator=generator)
            return hidden_states.to(self.device, config.dtype)
        return torch.randint(config.vocab_size, (tokens,), generator=generator).to(self.device)

    def _next_inputs(self, output: Tensor, tokens: int) -> Tensor:
        """The most likely tokens after the last ones (all `query_length` of them after a decode step)."""
        by_sequence = output.view(self.deployment.batch_size, tokens, -1)
        last = by_sequence[:, -self.deployment.query_length :]
        if self.deployment.role == "ffn":
            return last.flatten(0, 1).clone()
        return last.argmax(-1).flatten()

    def _new_caches(self, length: int) -> list[Any]:
        config: Any = self.module.config
        return config.new_caches(config.attention_sequences * self._pages(length), self.device)

    def _pages(self, length: int) -> int:
        return -(-length // self.deployment.block_size)

    def _step(
        self,
        module: nn.Module,
        inputs: Tensor,
        caches: list[Any],
        is_prefill: bool,
        past: int,
        tokens: int,
        length: int,
    ) -> Tensor:
        config: Any = self.module.config
        metadata = make_metadata(
            is_prefill,
            config.attention_sequences,
            past,
            tokens,
            self._pages(length),
            self.deployment.block_size,
            self.device,
        )
        return module(inputs, caches, metadata)


def load(spec: ModelSpec, deployment: Deployment, exe_mode: str, size: Size) -> LoadedModel:
    """Build a model of a deployment.

    Args:
        spec: the model.
        deployment: how it is served; a tiny model keeps its structure and shrinks its numbers.
        exe_mode: `eager`, `ge_graph` or `npugraph_ex`; generated code reads it from the config.
        size: `full` on `meta` in bf16, without memory; `tiny` on CPU in float32 with seeded weights.

    Raises:
        RefusedError: fields of the config are missing, unknown or ill-typed, or sizes do not divide dimensions.
    """
    if is_transformers(spec.architecture):
        from models.hf.loaded import load_transformers

        return load_transformers(spec, deployment, exe_mode, size)
    architecture = ARCHITECTURES[spec.architecture]
    python_module = architecture.load()
    config_class = _config_class(architecture)
    values, problems = read_record(config_class, spec.config, "model.config")
    raise_errors(problems)
    runtime = {
        "deployment": deployment,
        "exe_mode": exe_mode,
        "dtype": torch.bfloat16,
        "enable_multi_stream": deployment.multi_stream,
    }
    config = config_class(**values, **runtime)
    raise_errors(config.problems())
    if size == "tiny":
        deployment = deployment.tiny()
        values, problems = read_record(config_class, {**spec.config, **spec.tiny}, "model.tiny")
        raise_errors(problems)
        runtime |= {"deployment": deployment, "dtype": torch.float32}
        config = config_class(**values, **runtime)
        raise_errors(config.problems())
    with torch.device("meta" if size == "full" else "cpu"):
        module = getattr(python_module, architecture.model_class)(config)
    if size == "tiny":
        fill(module, seed=0)
    module.eval()
    return LoadedModel(spec, deployment, exe_mode, module, python_module, architecture.root, architecture.layers, size)


def load_spec(name: str, path: str | None = None, cache: str | None = None, **config: Any) -> ModelSpec:
    """The model of `conf/model/<name>.yaml`, or one of transformers: `hf/<model_type>`, or `hf` with a folder's path.

    Keyword arguments replace fields of its `config`.

    Raises:
        RefusedError: there is no such file, or it is not a model.
    """
    if is_transformers(name):
        chosen = {"cache": cache} if cache is not None else {}
        return ModelSpec.from_mapping({"name": name, "architecture": name, "config": config, "path": path, **chosen})
    mapping, file = _read_yaml("model", name)
    mapping["config"] = {**mapping.get("config", {}), **config}
    return ModelSpec.from_mapping(mapping, file)


def load_deployment(name: str, **fields: Any) -> Deployment:
    """The deployment of `conf/deployment/<name>.yaml`; keyword arguments replace fields.

    Raises:
        RefusedError: there is no such file, or it is not a deployment.
    """
    mapping, file = _read_yaml("deployment", name)
    return Deployment.from_mapping({**mapping, **fields}, file)


def _read_yaml(group: str, name: str) -> tuple[dict[str, Any], str]:
    from ruamel.yaml import YAML

    path = _CONF / group / f"{name}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in path.parent.glob("*.yaml"))
        message = f"there is no {group} {name!r}"
        raise RefusedError([Problem("error", "unknown-name", message, f"Known: {', '.join(known)}.", group)])
    return YAML(typ="safe").load(path.read_text()), f"conf/{group}/{name}.yaml"


def _config_class(architecture: Architecture) -> Any:
    return getattr(architecture.load(), architecture.config_class)


def _not_positive(config: Mapping[str, Any], key: str, file: str | None) -> list[Problem]:
    """Dimensions are positive, except that there may be no zero experts and no dense layers."""
    return [
        Problem("error", "bad-value", f"{value} is not positive", "Give a positive number.", f"{key}.{name}", file)
        for name, value in config.items()
        if type(value) in (int, float) and value <= 0 and not (name in _MAY_BE_ZERO and value == 0)
    ]
