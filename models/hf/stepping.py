"""Run any causal language model step by step, without knowing its cache."""

import inspect
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from models.deployment import Deployment
from models.hf.families import ROWS
from models.hf.meta import answers

SHORT = 5
_NOT_CARRIED = ("attentions", "hidden_states", "logits", "loss")


@dataclass
class State:
    """What goes from one step to the next.

    Attributes:
        carried: forward's keyword arguments that are fields of its output too: the cache, whatever its name and kind.
        tokens: all tokens so far, of a model that carries nothing.
        room: tokens for which a static cache is allocated, where that is more than the deployment's context.
    """

    carried: dict[str, Any] = field(default_factory=dict)
    tokens: Tensor | None = None
    room: int = 0


class Stepper:
    """Makes prompts for a model and runs it, or one that was rebuilt from it.

    Args:
        module: the model.
        deployment: how it is served.
        static: the first step after no state allocates a `StaticCache` of the whole context.
    """

    def __init__(self, module: nn.Module, deployment: Deployment, static: bool = False) -> None:
        self.module = module
        self.deployment = deployment
        self.static = static
        self._gives_cache = True

    @cached_property
    def cached(self) -> bool:
        """Whether the model carries anything: without it, every step runs over all tokens so far."""
        with torch.no_grad():
            return bool(self.step(self.module, self.prompt(2, seed=1), State())[1].carried)

    def try_out(self) -> None:
        """A short prompt and one step after it: what every model has to do."""
        logits, state = self.step(self.module, self.prompt(SHORT, seed=1), State())
        self.step(self.module, self.next_tokens(logits), state)

    def prompt(self, tokens: int, seed: int) -> Tensor:
        """Seeded token ids, `tokens` per sequence, no special ones."""
        generator = torch.Generator().manual_seed(seed)
        rows = self.deployment.batch_size * self._rows
        picked = torch.randint(len(self._ordinary), (rows, tokens), generator=generator)
        return self._ordinary[picked].to(self._device)

    def step(self, module: nn.Module, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """One forward.

        Args:
            module: the model, or one rebuilt from it.
            tokens: `[rows, tokens]`, only the new ones.
            state: after the tokens before; updated in place where the model does so.

        Returns:
            Logits `[rows, new tokens, vocabulary]` and the next state.
        """
        with answers() if tokens.is_meta else nullcontext():
            return self._step(module, tokens, state)

    def _step(self, module: nn.Module, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        arguments = dict(state.carried)
        history = tokens
        if not arguments and state.tokens is not None:
            history = torch.cat([state.tokens, tokens], dim=1)
        if not arguments and not self._gives_cache:
            arguments = self._own_cache()
        if not arguments and self.static:
            arguments = self._static_cache(state.room)
        output = module(input_ids=history, use_cache=True, **arguments)
        carried = self._carried(output)
        if not carried and not arguments and self._gives_cache and "cache" in self.parameters:
            self._gives_cache = False  # it takes a cache without giving one back
            arguments = self._own_cache()
            output = module(input_ids=history, use_cache=True, **arguments)
        carried = carried or arguments
        logits = output.logits[:, -tokens.shape[1] :]
        return logits, State(carried, None if carried else history)

    def next_tokens(self, logits: Tensor) -> Tensor:
        """The most likely ordinary tokens after the last ones, as many as one step has."""
        last = logits[:, -self.deployment.query_length :]
        ordinary = self._ordinary.to(last.device)
        return ordinary[last[..., ordinary].argmax(-1)]

    def _carried(self, output: Any) -> dict[str, Any]:
        found = {k: v for k, v in output.items() if k in self.parameters and v is not None}
        return {k: v for k, v in found.items() if k not in _NOT_CARRIED}

    def _own_cache(self) -> dict[str, Any]:
        from transformers import DynamicCache

        config: Any = self.module.config
        return {"cache": DynamicCache(config=config)}

    def _static_cache(self, room: int) -> dict[str, Any]:
        from transformers import StaticCache

        config: Any = self.module.config
        return {"cache": StaticCache(config=config, max_cache_len=max(self.deployment.context_length, room))}

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The arguments of the model's forward."""
        return frozenset(inspect.signature(type(self.module).forward).parameters)

    @cached_property
    def _device(self) -> torch.device:
        return next(self.module.parameters()).device

    @cached_property
    def _rows(self) -> int:
        """Rows of token ids per sequence: models of audio codes have one per codebook."""
        config: Any = self.module.config
        return int(getattr(config, ROWS[config.model_type])) if config.model_type in ROWS else 1

    @cached_property
    def _ordinary(self) -> Tensor:
        """Token ids that mean text: no padding, no image or audio places, no end."""
        config: Any = self.module.config
        text = config.get_text_config()
        special: set[int] = set()
        for part in (config, text):
            for name, value in vars(part).items():
                values = value if isinstance(value, list | tuple) else [value]
                if name.endswith(("_token_id", "_token_index", "_index")):
                    special |= {token for token in values if isinstance(token, int)}
        keep = torch.ones(int(text.vocab_size), dtype=torch.bool)
        keep[[t for t in special if 0 <= t < len(keep)]] = False
        return keep.nonzero().flatten()
