"""What a model is told that asks its data on `meta`."""

import torch

from models.hf.meta import answers, first_experts


def test_every_expert_has_tokens() -> None:
    with answers():
        assert torch.zeros(8, device="meta").nonzero().shape == (8, 1)


def test_the_first_expert_stands_for_all_where_only_the_kind_of_work_matters() -> None:
    mask = torch.zeros(8, 3, device="meta")
    with first_experts(), answers():
        assert mask.sum(1).nonzero().shape == (1, 1)
        assert mask.nonzero().shape == (24, 2)  # places of tokens, not a list of experts
    with answers():
        assert mask.sum(1).nonzero().shape == (8, 1)


def test_a_mask_picks_all_places() -> None:
    x = torch.zeros(2, 3, 4, device="meta")
    mask = torch.zeros(2, 3, dtype=torch.bool, device="meta")
    with answers():
        assert x[mask].shape == (6, 4)
        x[mask] = x[mask]
