"""What a forward pass must know about the tokens that it is given."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

_MASK_SIZE = 2048  # the compressed causal mask that the fused attention wants, whatever the lengths are


@dataclass(frozen=True)
class ForwardMetadata:
    """Positions and cache places of the tokens of one step, sequence after sequence, equally many each.

    Attributes:
        is_prefill: prefill or decode.
        positions: position of each token in its sequence, int64 [T].
        slot_mapping: slot of each token in the paged cache, int64 [T].
        block_table: pages of each sequence, int32 [B, pages] (the fused attention takes no other type).
        kv_lengths: cached tokens of each sequence, this step's included, int64 [B].
        query_lengths: cumulative number of query tokens, int64 [B].
        host_kv_lengths, host_query_lengths: the same as numbers of the host: npugraph_ex takes lengths from there.
        attention_mask: bool [2048, 2048], True above the diagonal: a new token sees no later one. None where every
            sequence has only one.
    """

    is_prefill: bool
    positions: Tensor
    slot_mapping: Tensor
    block_table: Tensor
    kv_lengths: Tensor
    query_lengths: Tensor
    host_kv_lengths: tuple[int, ...] = ()
    host_query_lengths: tuple[int, ...] = ()
    attention_mask: Tensor | None = None


def make_metadata(
    is_prefill: bool, sequences: int, past: int, tokens: int, pages: int, block_size: int, device: torch.device
) -> ForwardMetadata:
    """Metadata of `tokens` new tokens for each of `sequences` sequences that have `past` tokens cached.

    Args:
        pages: pages of each sequence; sequence b owns pages b x pages onwards.
        block_size: tokens per page.
    """
    block_table = torch.arange(sequences * pages, dtype=torch.int32, device=device).view(sequences, pages)
    positions = (past + torch.arange(tokens, device=device)).repeat(sequences)
    first_slots = torch.arange(sequences, device=device) * pages * block_size  # pages of a sequence are consecutive
    slot_mapping = first_slots.repeat_interleave(tokens, output_size=sequences * tokens) + positions
    kv_lengths = torch.full((sequences,), past + tokens, device=device)
    query_lengths = torch.arange(1, sequences + 1, device=device) * tokens
    host_kv_lengths = (past + tokens,) * sequences
    host_query_lengths = tuple(tokens * (sequence + 1) for sequence in range(sequences))
    return ForwardMetadata(
        is_prefill,
        positions,
        slot_mapping,
        block_table,
        kv_lengths,
        query_lengths,
        host_kv_lengths,
        host_query_lengths,
        causal_mask(device) if tokens > 1 else None,
    )


@functools.cache
def causal_mask(device: torch.device) -> Tensor:
    """The mask of every step on a device, made once."""
    return torch.ones(_MASK_SIZE, _MASK_SIZE, dtype=torch.bool, device=device).triu(1)
