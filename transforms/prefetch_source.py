"""The source realisation of a plan: prefetch calls written into the modeling file."""

import difflib
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from transforms.example import Example
from transforms.placing import Refusals, Statement, place
from transforms.plan import Plan
from transforms.plumbing import FileRewrite
from transforms.reaching import NotPlaceable
from transforms.realisation import Realisation, SourceResult
from transforms.recording import Recording, record
from transforms.siblings import load_sibling
from transforms.source_file import lines_of

_BANNER_CHARACTERS = 2000


def prefetch_source(loaded: Any, plan: Plan, recording: Recording | None = None) -> SourceResult:
    """Write the plan's prefetch calls into the source of the model.

    Args:
        loaded: a tiny `LoadedModel`; the plan's FQNs are those of its modules, the sizes may be of the full model.
        plan: what to prefetch.
        recording: of the same model, to reuse it for several plans.

    Raises:
        RefusedError: some entry can't be written; holds the reasons for all of them, and nothing has been written.
    """
    recording = recording or record(loaded)
    before = recording.source.text
    after = _rewrite(recording, plan) if plan.prefetch else before
    name = recording.python_module.__name__.replace(".", "/") + ".py"
    return SourceResult(before, after, unified_diff(before, after, name), recording.source.path, name, _notes(before))


def load_rewritten(loaded: Any, result: SourceResult, directory: Path) -> ModuleType:
    """Import the rewritten file beside the original; see `siblings.load_sibling`."""
    return load_sibling(loaded.python_module, result.after, directory)


def realise(loaded: Any, plan: Plan, recording: Recording | None = None) -> Realisation:
    """Rewrite now; load, and build with the switch on or off, when asked to; see `prefetch_source`."""
    result = prefetch_source(loaded, plan, recording)
    rewritten: list[ModuleType] = []  # loaded when it is first needed: that is the *compiles* rung's business

    def build(enabled: bool, directory: Path) -> nn.Module:
        if not rewritten:
            rewritten.append(load_rewritten(loaded, result, directory))
        return loaded.rebuild(rewritten[0], enable_prefetch=enabled)

    return Realisation(build, result)


def unified_diff(before: str, after: str, name: str) -> str:
    """Like `git diff`, files without a final line end included."""
    lines = difflib.unified_diff(lines_of(before), lines_of(after), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _notes(text: str) -> tuple[str, ...]:
    banner = text[:_BANNER_CHARACTERS].lower()
    if "automatically generated" in banner or "do not edit" in banner:
        return (
            "The file says that it is generated: apply the diff to a copy of your own, or change what it is made from.",
        )
    return ()


def _rewrite(recording: Recording, plan: Plan) -> str:
    statements = place(recording, plan)
    refusals = Refusals()
    file = FileRewrite(recording)
    groups: dict[object, list[Statement]] = {}
    for statement in statements:
        spot = statement.spot
        groups.setdefault((spot.function, spot.site, spot.where, spot.port), []).append(statement)
    for group in sorted(groups.values(), key=lambda g: g[0].spot.place):
        try:
            file.prefetch(group)
        except NotPlaceable as reason:
            for entry in (entry for statement in group for entry in statement.entries):
                refusals.add(entry, reason)
    try:
        file.check()
        text = file.text()
    except NotPlaceable as reason:
        refusals.add(plan.prefetch[0], reason)
    refusals.raise_if_any()
    return text


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
        self.next_layer = None
        self.attention = nn.Linear(8, 8)
        self.mlp = nn.Linear(8, 8)

    def forward(self, hidden_states, is_prefill):
        prefetch = self.enable_prefetch and not is_prefill  # decode only
        hidden_states = self.attention(hidden_states)
        # residual
        mlp_output = self.mlp(hidden_states)
        if self.next_layer is not None:
            npu_prefetch(
                prefetch,
                self.next_layer.attention.weight,
                mlp_output,
                64,
            )
        return hidden_states + mlp_output


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        check_prefetch(config)
        self.layers = nn.ModuleList([Layer(config) for _ in range(2)])
        for layer, next_layer in zip(self.layers[:-1], self.layers[1:], strict=True):
            # a link, not a submodule
            object.__setattr__(layer, "next_layer", next_layer)

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
