"""The source realisation of a plan's SuperKernel scopes: `with` blocks written into the modeling file."""

from dataclasses import replace
from typing import Any

from transforms.example import Example
from transforms.plan import Plan
from transforms.realisation import Realisation, SourceResult
from transforms.recording import Recording
from transforms.source import realise as realise_source
from transforms.source import rewrite


def superkernel_source(loaded: Any, plan: Plan, recording: Recording | None = None) -> SourceResult:
    """Write the plan's scopes into the source of the model; see `source.rewrite`."""
    return rewrite(loaded, replace(plan, prefetch=()), recording)


def realise(loaded: Any, plan: Plan, recording: Recording | None = None) -> Realisation:
    """See `source.realise`; of the plan, only the scopes."""
    return realise_source(loaded, replace(plan, prefetch=()), recording)


_BEFORE = """\
from torch import nn

from models.superkernel import check_superkernel, superkernel_scope


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.Linear(8, 8)
        self.mlp = nn.Linear(8, 8)

    def forward(self, hidden_states, is_prefill):
        residual = hidden_states
        # attention
        hidden_states = self.norm(hidden_states)
        hidden_states = self.attention(hidden_states)
        return residual + self.mlp(hidden_states)


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([Layer(config) for _ in range(2)])

    def forward(self, hidden_states, is_prefill):
        for layer in self.layers:
            hidden_states = layer(hidden_states, is_prefill)
        return hidden_states
"""
_PER_LAYER = """\
from torch import nn

from models.superkernel import check_superkernel, superkernel_scope


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.enable_superkernel = getattr(config, "enable_superkernel", False)
        self.layer_idx = None
        self.norm = nn.LayerNorm(8)
        self.attention = nn.Linear(8, 8)
        self.mlp = nn.Linear(8, 8)

    def forward(self, hidden_states, is_prefill):
        superkernel = self.enable_superkernel and not is_prefill  # decode only
        residual = hidden_states
        # attention
        with superkernel_scope(
            superkernel,
            f"attention_{self.layer_idx}",
            "stream-fusion=1",
        ):
            hidden_states = self.norm(hidden_states)
            hidden_states = self.attention(hidden_states)
        with superkernel_scope(
            superkernel,
            f"mlp_{self.layer_idx}",
            "stream-fusion=1",
        ):
            mlp_output = self.mlp(hidden_states)
        return residual + mlp_output


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        check_superkernel(config)
        self.layers = nn.ModuleList([Layer(config) for _ in range(2)])
        for layer_idx, layer in enumerate(self.layers):
            layer.layer_idx = layer_idx

    def forward(self, hidden_states, is_prefill):
        for layer in self.layers:
            hidden_states = layer(hidden_states, is_prefill)
        return hidden_states
"""
_LOOP = """\
from torch import nn

from models.superkernel import check_superkernel, superkernel_scope


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.Linear(8, 8)
        self.mlp = nn.Linear(8, 8)

    def forward(self, hidden_states, is_prefill):
        residual = hidden_states
        # attention
        hidden_states = self.norm(hidden_states)
        hidden_states = self.attention(hidden_states)
        return residual + self.mlp(hidden_states)


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.enable_superkernel = getattr(config, "enable_superkernel", False)
        check_superkernel(config)
        self.layers = nn.ModuleList([Layer(config) for _ in range(2)])

    def forward(self, hidden_states, is_prefill):
        superkernel = self.enable_superkernel and not is_prefill  # decode only
        with superkernel_scope(
            superkernel,
            "decoder_layers",
            "stream-fusion=1",
        ):
            for layer in self.layers:
                hidden_states = layer(hidden_states, is_prefill)
        return hidden_states
"""
EXAMPLES = (
    Example(
        "two scopes per layer, labelled with its index; what is computed of the last result stays outside",
        _BEFORE,
        _PER_LAYER,
        scopes=(("attention_{i}", "{i}.norm", "{i}.attention"), ("mlp_{i}", "{i}.mlp", "{i}.mlp")),
    ),
    Example(
        "one scope over the whole loop of the layers",
        _BEFORE,
        _LOOP,
        scopes=(("decoder_layers", "0", "1"),),
    ),
)
