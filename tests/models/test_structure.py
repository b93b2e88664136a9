"""The decoder layer list is found by running, on hand-made models and on transformers' architectures."""

import pytest
import torch
from torch import nn

from models.problems import RefusedError
from models.structure import decoder_layers


class Block(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.down = nn.Linear(4, 4)
        if inner:
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 256)) for _ in range(inner))

    def forward(self, x):
        return self.down(self.up(x))


def block(inner=0):
    return Block(inner)


class TwoLists(nn.Module):
    def __init__(self, **lists):
        super().__init__()
        self.model = nn.Module()
        for name, items in lists.items():
            setattr(self.model, name, nn.ModuleList(items))

    def use(self, name):
        x = torch.zeros(1, 4)
        for layer in getattr(self.model, name):
            x = layer(x)


def test_a_list_that_is_not_called_loses_even_if_it_is_larger():
    model = TwoLists(vision=[block() for _ in range(9)], layers=[block() for _ in range(2)])
    assert decoder_layers(model, lambda: model.use("layers")) == ("model", "layers")
    assert decoder_layers(model, lambda: model.use("vision")) == ("model", "vision")


def test_lists_inside_layers_and_lists_of_tables_do_not_count():
    model = TwoLists(tables=[nn.Embedding(1000, 4)], layers=[block(inner=4), block(inner=4)])
    assert decoder_layers(model, lambda: model.use("layers")) == ("model", "layers")


def test_of_two_called_lists_the_one_with_more_parameters_wins():
    model = TwoLists(short=[block(inner=5)], long=[block() for _ in range(4)])

    def run():
        model.use("long")
        model.use("short")

    assert decoder_layers(model, run) == ("model", "short")


def test_a_list_at_the_top_has_an_empty_root_and_hooks_are_removed():
    model = nn.Module()
    model.layers = nn.ModuleList([block()])
    assert decoder_layers(model, lambda: model.layers[0](torch.zeros(1, 4))) == ("", "layers")
    assert not model.layers[0]._forward_pre_hooks


def test_a_model_without_a_called_list_is_refused():
    model = TwoLists(layers=[block()], norms=[nn.ReLU()])
    with pytest.raises(RefusedError, match="runs no list of decoder layers") as refused:
        decoder_layers(model, lambda: None)
    assert "model.layers" in str(refused.value) and "norms" not in str(refused.value)


TINY = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 64}
FAMILIES = {
    "llama": ({**TINY, "intermediate_size": 48, "num_key_value_heads": 2}, ("model", "layers")),
    "gpt2": ({"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 64}, ("transformer", "h")),
    "mixtral": (
        {**TINY, "intermediate_size": 48, "num_key_value_heads": 2, "num_local_experts": 4},
        ("model", "layers"),
    ),
    "whisper": (
        {
            "d_model": 32,
            "encoder_layers": 4,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "vocab_size": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        ("model.decoder", "layers"),
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_architectures(family):
    from transformers import AutoConfig, AutoModelForCausalLM

    settings, expected = FAMILIES[family]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings)).eval()
    assert decoder_layers(model, lambda: model(torch.tensor([[1, 2, 3]]))) == expected


def test_a_transformers_model_is_traced_like_any_other():
    """No marked kernel at all: every kernel comes from an aten op, on meta, with the projections' weights found."""
    from types import SimpleNamespace

    from transformers import AutoConfig, AutoModelForCausalLM

    from models.trace import trace

    config = AutoConfig.for_model("llama", **FAMILIES["llama"][0])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        ids = torch.ones(1, 1, dtype=torch.long)

    def decode_once():
        return model(ids, use_cache=False, attention_mask=ids)

    loaded = SimpleNamespace(module=model, root="model", layers="layers", deployment=None, decode_once=decode_once)
    work = trace(loaded)
    down = work.readers("model.layers.1.mlp.down_proj.weight")
    (call,) = work.calls["model.layers.0.self_attn.o_proj"]
    assert len(down) == 1 and work.kernels[down[0]].op == "MatMul" and work.kernels[down[0]].layer == 1
    assert call.output_kernel is not None and work.is_ancestor(call.output_kernel, down[0])
    assert not work.is_ancestor(down[0], call.output_kernel)
    assert {w.weight for k in work.kernels for w in k.weights} == set(work.weight_bytes)
