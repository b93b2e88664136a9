"""A transformers model that can be run, traced, rebuilt from rewritten source, and compared."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from models.deployment import Deployment, context_problems
from models.hf.build import build, declared_positions, file_module, positions
from models.hf.checkpoint import load_own, own_weights
from models.hf.extending import past_state
from models.hf.meta import first_experts, reasons
from models.hf.rebuilding import rebuild, set_on_all
from models.hf.specs import deployment_problems, read_configs
from models.hf.static_cache import check_static
from models.hf.stepping import State, Stepper
from models.hf.types import GROUP
from models.loading import SEEDED, LoadedModel, ModelSpec, Size
from models.problems import Problem, RefusedError, raise_errors
from models.structure import decoder_layers

_PROMPT_TOKENS = 5


@dataclass
class TransformersModel(LoadedModel):
    """A causal language model of transformers, unsharded, with eager attention.

    Attributes:
        module: the whole model with its head, e.g. a `LlamaForCausalLM`.
        python_module: the module whose file holds the decoder layers' class, e.g.
            `transformers.models.llama.modeling_llama`: the source that a transform rewrites.
    """

    _past: State | None = field(default=None, repr=False)
    _stepper: Stepper | None = field(default=None, repr=False)

    def run(
        self,
        module: nn.Module | None = None,
        decode_steps: int = 3,
        before_decode: Callable[[], None] = lambda: None,
        seed: int = 1,
    ) -> list[Tensor]:
        """Prefill a seeded prompt of 5 tokens per sequence, then decode with the model's own cache, or a static one.

        Args:
            module: run this instead of `self.module`, e.g. one rebuilt from rewritten source.
            decode_steps: decode steps after the prefill.
            before_decode: called once, between the prefill and the first decode step.
            seed: of the prompt.

        Returns:
            The logits of the prefill and of every step: one row per token.
        """
        module = self.module if module is None else module
        stepper = self.stepper
        tokens = stepper.prompt(_PROMPT_TOKENS, seed)
        outputs = []
        with torch.no_grad():
            state = State(room=_PROMPT_TOKENS + decode_steps * self.deployment.query_length)
            for i in range(decode_steps + 1):
                if i == 1:
                    before_decode()
                logits, state = stepper.step(module, tokens, state)
                outputs.append(logits.flatten(0, 1))
                tokens = stepper.next_tokens(logits)
        return outputs

    def decode_once(self, module: nn.Module | None = None) -> Tensor:
        """One decode step with the deployment's batch and context (works on `meta`)."""
        module = self.module if module is None else module
        past = copy.deepcopy(self.past())
        tokens = self.stepper.prompt(self.deployment.query_length, seed=1)
        with torch.no_grad(), reasons(self.module, self._fix):
            return self.stepper.step(module, tokens, past)[0].flatten(0, 1)

    def decode_in_short(self) -> Tensor:
        """`decode_once` for who asks what is done, not how often: loops over experts run for the first one only."""
        with first_experts():
            return self.decode_once()

    def past(self) -> State:
        """The state after all tokens of the context but those of one step.

        It runs the model when it is first asked for: ask before hooks are in place.
        """
        if self._past is None:
            tokens = self.deployment.context_length - self.deployment.query_length
            with reasons(self.module, self._fix):
                self._past = past_state(self.stepper, tokens)
        return self._past

    def rebuild(self, python_module: ModuleType, **switches: Any) -> nn.Module:
        """The same model from another module's classes, sharing this model's state.

        Args:
            python_module: usually the rewritten sibling of `self.python_module`.
            switches: set on the config, e.g. `enable_prefetch=True`.

        Raises:
            RefusedError: the classes can't be put in place of the old ones.
        """
        return rebuild(self.module, self.python_module, python_module, switches)

    @property
    def _fix(self) -> str:
        most = declared_positions(self.module)
        shorter = most is not None and self.deployment.context_length > most
        return f"The model is meant for {most} tokens: try deployment.context_length={most}." if shorter else ""

    @property
    def stepper(self) -> Stepper:
        """Makes prompts for this model and runs it."""
        if self._stepper is None:
            self._stepper = Stepper(self.module, self.deployment, self.spec.cache == "static")
        return self._stepper


def load_transformers(spec: ModelSpec, deployment: Deployment, exe_mode: str, size: Size) -> TransformersModel:
    """Build a model of transformers; arguments and errors as in `models.loading.load`."""
    configs = read_configs(
        {"architecture": spec.architecture, "config": spec.config, "tiny": spec.tiny, "path": spec.path}
    )
    model_type = configs.model_type
    raise_errors(deployment_problems(deployment))
    small = build(configs.tiny, model_type, "tiny")
    tiny = deployment.tiny()
    stepper = Stepper(small, tiny)
    with reasons(small):
        root, layers = decoder_layers(small, stepper.try_out)
    if spec.cache == "static":
        check_static(small, stepper)
    python_module = file_module(small.get_submodule(f"{root}.{layers}.0".strip(".")))
    module, served, weights, problems = small, tiny, SEEDED, configs.problems
    if size == "full":
        module, served = build(configs.full, model_type, "full"), deployment
        raise_errors(context_problems(deployment, positions(module)))
        problems += own_weights(spec.path, bool(spec.tiny)).problems if spec.path else ()
    elif spec.path and own_weights(spec.path, bool(spec.tiny)).use:
        module, weights = load_own(spec.path, configs.full, model_type), "the checkpoint's own weights"
    marks = {"exe_mode": exe_mode, "enable_multi_stream": deployment.multi_stream}
    for name, value in (marks | ({"cache_implementation": "static"} if spec.cache == "static" else {})).items():
        set_on_all(module, name, value)
    return TransformersModel(
        spec, served, exe_mode, module, python_module, root, layers, size, problems=problems, weights=weights
    )


def load_problems(model_type: str, size: Size = "tiny") -> tuple[Problem, ...]:
    """Why a type of transformers can't be loaded with its default configuration; empty if it can.

    Args:
        model_type: any name; those of `causal_lm_types()` are the candidates.
        size: `tiny` builds and runs it, `full` also builds it on `meta`.
    """
    spec = {"name": f"{GROUP}/{model_type}", "architecture": f"{GROUP}/{model_type}", "config": {}}
    try:
        load_transformers(ModelSpec.from_mapping(spec), Deployment("unsharded"), "eager", size)
    except RefusedError as refused:
        return refused.problems
    return ()
