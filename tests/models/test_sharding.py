"""Two processes with real collectives compute what one die alone computes."""

import multiprocessing
import socket
from typing import Any

import pytest
import torch

from models.loading import load, load_deployment, load_spec
from models.ops import collectives
from models.weights import install

CASES: list[tuple[str, dict[str, Any]]] = [
    (
        "longcat_flash",
        {"dense_tp_size": 2, "o_proj_tp_size": 2, "lmhead_tp_size": 2, "embed_tp_size": 2, "moe_ep_size": 2},
    ),
    ("longcat_flash", {"dense_tp_size": 2, "o_proj_tp_size": 2, "attn_tp_size": 2, "moe_tp_size": 2, "next_n": 1}),
    ("longcat_flash", {"moe_ep_size": 2, "quant": "w8a8", "next_n": 1}),
    (
        "deepseek_v3",
        {"dense_tp_size": 2, "o_proj_tp_size": 2, "lmhead_tp_size": 2, "embed_tp_size": 2, "moe_ep_size": 2},
    ),
    ("deepseek_v3", {"dense_tp_size": 2, "o_proj_tp_size": 2, "attn_tp_size": 2, "moe_tp_size": 2, "next_n": 1}),
    ("deepseek_v3", {"moe_ep_size": 2, "quant": "w8a8", "next_n": 1}),
    ("qwen3_moe", {"attn_tp_size": 2, "o_proj_tp_size": 2, "moe_ep_size": 2, "lmhead_tp_size": 2, "embed_tp_size": 2}),
    ("qwen3_moe", {"moe_tp_size": 2, "next_n": 1}),
    (
        "qwen3",
        {"attn_tp_size": 2, "o_proj_tp_size": 2, "dense_tp_size": 2, "lmhead_tp_size": 2, "embed_tp_size": 2},
    ),
]


def difference(name: str, fields: dict[str, Any], rank: int) -> float:
    """Largest difference of this rank's outputs to those of a model on one die with the same weights and tokens."""
    seed = 1 if name == "qwen3" else 1 + rank  # the dies of one Qwen3 group hold the same tokens
    alone = {key: fields[key] for key in ("quant", "next_n") if key in fields}
    whole = load(load_spec(name), load_deployment("unsharded", **alone), "eager", "tiny")
    part = load(load_spec(name), load_deployment("unsharded", world_size=2, **fields), "eager", "tiny")
    collectives.init_groups(part.deployment)
    install(part.module, dict(whole.module.named_parameters()))
    pairs = zip(whole.run(seed=seed), part.run(seed=seed), strict=True)
    result = max(float((a - b).abs().max()) for a, b in pairs)
    collectives.clear_groups()
    return result


def one_rank(rank: int, port: int, results: Any) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    results.put([difference(name, fields, rank) for name, fields in CASES])
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def differences() -> list[list[float]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    processes = [context.Process(target=one_rank, args=(rank, port, results)) for rank in range(2)]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(timeout=30)
    return found


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: f"{CASES[i][0]}-{i}")
def test_a_sharded_model_equals_the_whole_one(case, differences):
    assert all(of_rank[case] < 1e-4 for of_rank in differences)


def test_the_loopback_is_not_the_deployment():
    """What the comparison above would see if the collectives did nothing."""
    name, fields = CASES[0]
    whole = load(load_spec(name), load_deployment("unsharded"), "eager", "tiny")
    part = load(load_spec(name), load_deployment("unsharded", world_size=2, **fields), "eager", "tiny")
    install(part.module, dict(whole.module.named_parameters()))
    assert (whole.run()[0] - part.run()[0]).abs().max() > 0.1
