"""Whether a call came too late: before its weight is read, judged by what the weight's owner was doing."""

from pipeline.verify.calls import deviation
from pipeline.verify.observation import Call, Observation, Passage, Step
from transforms.plan import Plan, Prefetch

WEIGHT, TENSOR, OTHER = (1, 0, 64, 0), (2, 0, 64, 0), (3, 0, 64, 0)
PLAN = Plan(
    "m", "r", "eager", (Prefetch("bias", "attention.bias.table", "attention.bias.linear", "output", 0, 64, 32),)
)


def seen(calls_before_end: int) -> Observation:
    """One decode step in which `attention.bias` calls its linear and then reads its own bare parameter."""
    passages = [
        Passage("attention.bias", OTHER, 0, OTHER, calls_before_end),
        Passage("attention.bias.linear", OTHER, 0, TENSOR, 0),
    ]
    decode = Step(True, [Call(WEIGHT, TENSOR, 32, 0)], passages)
    return Observation([], [Step(False), decode], [], {"attention.bias.table": WEIGHT})


def test_an_owner_that_makes_the_dependency_has_not_read_its_parameter_yet() -> None:
    assert deviation(PLAN, seen(1), 1) is None


def test_after_the_owner_has_ended_it_is_too_late() -> None:
    found = deviation(PLAN, seen(0), 1)
    assert found is not None and "issued only after attention.bias.table had been read" in found
