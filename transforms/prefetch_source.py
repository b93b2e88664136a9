"""The source realisation of a plan's prefetches: calls written into the modeling file."""

from dataclasses import replace
from typing import Any

from transforms.example import Example
from transforms.plan import Plan
from transforms.realisation import Realisation, SourceResult
from transforms.recording import Recording
from transforms.source import load_rewritten as load_rewritten
from transforms.source import realise as realise_source
from transforms.source import rewrite


def prefetch_source(loaded: Any, plan: Plan, recording: Recording | None = None) -> SourceResult:
    """Write the plan's prefetch calls into the source of the model; see `source.rewrite`."""
    return rewrite(loaded, replace(plan, scopes=()), recording)


def realise(loaded: Any, plan: Plan, recording: Recording | None = None) -> Realisation:
    """See `source.realise`."""
    return realise_source(loaded, replace(plan, scopes=()), recording)


_BEFORE = """\
from torch import nn

from models.prefetch import check_prefetch, npu_prefetch


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = nn.Linear(8, 8)
        self.mlp = nn.Linear(8, 8)

    def forward(self, hidden_states, is_prefill):
        hidden_states = self.attention(hidden_states)
        # residual
        return hidden_states + self.mlp(hidden_states)


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([Layer(config) for _ in range(2)])

    def forward(self, hidden_states, is_prefill):
        for layer in self.layers:
            hidden_states = layer(hidden_states, is_prefill)
        return hidden_states
"""
_NAMED = """\
from torch import nn

from models.prefetch import check_prefetch, npu_prefetch


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.enable_prefetch = getattr(config, "enable_prefetch", False)
        self.attention = nn.Linear(8, 8)
        self.mlp = nn.Linear(8, 8)

    def forward(self, hidden_states, is_prefill):
        prefetch = self.enable_prefetch and not is_prefill  # decode only
        hidden_states = self.attention(hidden_states)
        npu_prefetch(prefetch, self.mlp.weight, hidden_states, 64)
        # residual
        return hidden_states + self.mlp(hidden_states)


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        check_prefetch(config)
        self.layers = nn.ModuleList([Layer(config) for _ in range(2)])

    def forward(self, hidden_states, is_prefill):
        for layer in self.layers:
            hidden_states = layer(hidden_states, is_prefill)
        return hidden_states
"""
_HOISTED = """\
from torch import nn

from models.prefetch import check_prefetch, npu_prefetch


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.enable_prefetch = getattr(config, "enable_prefetch", False)
        self.next_attention = None
        self.attention = nn.Linear(8, 8)
        self.mlp = nn.Linear(8, 8)

    def forward(self, hidden_states, is_prefill):
        prefetch = self.enable_prefetch and not is_prefill  # decode only
        hidden_states = self.attention(hidden_states)
        # residual
        mlp_output = self.mlp(hidden_states)
        if self.next_attention is not None:
            npu_prefetch(prefetch, self.next_attention.weight, mlp_output, 64)
        return hidden_states + mlp_output


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        check_prefetch(config)
        self.layers = nn.ModuleList([Layer(config) for _ in range(2)])
        for layer, next_layer in zip(self.layers[:-1], self.layers[1:], strict=True):
            # a link, not a submodule
            object.__setattr__(layer, "next_attention", next_layer.attention)

    def forward(self, hidden_states, is_prefill):
        for layer in self.layers:
            hidden_states = layer(hidden_states, is_prefill)
        return hidden_states
"""
EXAMPLES = (
    Example("a result that has a name: the call follows it", _BEFORE, _NAMED, (("{i}.mlp.weight", "{i}.attention"),)),
    Example(
        "a result inside an expression gets a name, and the next layer is reached by a link",
        _BEFORE,
        _HOISTED,
        (("{i+1}.attention.weight", "{i}.mlp"),),
    ),
)
