"""Full-size steps lowered by the real front end, each once in a test process."""

from functools import cache

import pytest

from pipeline.compose import compose_grid
from pipeline.experiment import Prepared, build_experiment, prepare
from pipeline.graph.folder import BrokenFrontEndError, NoFrontEndError, find_front_end
from pipeline.graph.rung import GraphCheck, check_graph
from pipeline.overrides import read_overrides

try:
    find_front_end()
    MISSING = ""
except (NoFrontEndError, BrokenFrontEndError) as error:
    MISSING = str(error)
real = pytest.mark.skipif(bool(MISSING), reason=MISSING)

GE = ("runtime=ge_graph",)
NPUGRAPH_EX = ("runtime=npugraph_ex", "recipe.superkernel.allow=[npugraph_ex]")
LONGCAT = ("longcat_flash/decode_full", "deployment=longcat_a3_ep32", "model.config.num_layers=2")
QWEN3 = ("qwen3/decode_prefetch", "model.config.num_hidden_layers=2")


@cache
def prepared(recipe: str, *overrides: str) -> Prepared:
    """A recipe resolved and realised, nothing lowered yet."""
    (point,) = compose_grid(read_overrides([f"recipe={recipe}", *overrides])[0], False)
    return prepare(build_experiment(point.config, point.sources()))


@cache
def lowered(*words: str, wrap: bool = False) -> GraphCheck:
    """The rung of `prepared(*words)`, for its rewritten source or for the wrapped model."""
    model = prepared(*words)
    assert model.realisation is not None and model.realisation.source is not None
    return check_graph(model, None if wrap else model.realisation.source.after)
