"""Process groups of a whole deployment in one process, so that collectives lower to what they are on the NPU.

In the loopback of `models.ops.collectives` an all-gather is a repetition and a reduce-scatter a slice: kernels that no
deployment has. With torch's fake backend the groups exist, nothing is ever sent, and the front end makes
`HcomAllGather`, `HcomReduceScatter`, `HcomAllToAll`.
"""

import importlib
from typing import Any

import torch.distributed as dist

from models.deployment import Deployment
from models.ops import collectives


def join_fake_groups(deployment: Deployment) -> None:
    """Be rank 0 of the deployment. Runs in the worker, once."""
    if deployment.world_size == 1:
        return
    fake: Any = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", rank=0, world_size=deployment.world_size, store=fake.FakeStore())
    collectives.init_groups(deployment)
    # Fused operators that communicate take the name of an HCCL communicator, which a fake group does not have.
    collectives.communicator = lambda group: group
