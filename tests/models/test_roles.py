"""Roles of weights are found by running: on hand-made layers, on our models, and on transformers' architectures."""

import pytest
import torch
from torch import nn

from models.loading import load, load_deployment, load_spec
from models.role_names import ROLES, unknown_role
from models.roles import Roles, find_roles
from tests.transforms.real_models import load as load_real


def roles(name: str, size: str = "tiny") -> Roles:
    return find_roles(load(load_spec(name), load_deployment("unsharded"), "ge_graph", size))  # type: ignore[arg-type]


def below(found: Roles, layer: int, role: str) -> list[str]:
    """Names without the layer."""
    return [name.split(f"layers.{layer}.")[1] for name in found.of(layer, role)]


def test_a_dense_model_of_ours():
    found = roles("qwen3")
    assert below(found, 1, "mixer") == ["self_attn"]
    assert below(found, 1, "attention.in") == ["self_attn.qkv_proj"]
    assert below(found, 1, "attention.out") == ["self_attn.o_proj"]
    assert below(found, 1, "feed_forward") == ["mlp"]
    assert below(found, 1, "mlp.up") == ["mlp.gate_up_proj"]
    assert below(found, 1, "mlp.down") == ["mlp.down_proj"]
    assert below(found, 1, "norm.mixer") == ["input_layernorm"]
    assert below(found, 1, "norm.feed_forward") == ["post_attention_layernorm"]
    assert found.of(1, "mlp.gate") == () and found.of(1, "moe.router") == ()
    assert found.of(99, "mlp.up") == ()


def test_latent_attention_and_a_mixture_of_experts():
    found = roles("deepseek_v3")
    assert below(found, 0, "mlp.up") == ["mlp.gate_up_proj"] and found.of(0, "moe.router") == ()
    assert below(found, 1, "attention.in") == ["self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"]
    assert "self_attn.q_b_proj" in below(found, 1, "attention.inner")
    assert below(found, 1, "moe.router") == ["mlp.gate"]
    assert below(found, 1, "moe.experts.up") == ["mlp.experts.w13_weight"]  # a bare parameter
    assert below(found, 1, "moe.experts.down") == ["mlp.experts.w2_weight"]
    assert below(found, 1, "moe.shared.up") == ["mlp.shared_experts.gate_up_proj"]
    assert found.of(1, "mlp.up") == ()
    assert found.counts()["mlp.up"] == (1, 1) and found.counts()["attention.in"] == (3, 6)


def test_a_layer_with_two_attentions_two_mlps_and_experts_names_several():
    found = roles("longcat_flash")
    assert below(found, 0, "mixer") == ["self_attn.0", "self_attn.1"]
    assert below(found, 0, "attention.out") == ["self_attn.0.o_proj", "self_attn.1.o_proj"]
    assert below(found, 0, "mlp.up") == ["mlps.0.gate_up_proj", "mlps.1.gate_up_proj"]
    assert below(found, 0, "moe.router") == ["mlp.router.classifier"]
    first, second = found.of(0, "attention.out")
    assert (found.parts[first], found.parts[second]) == (0, 1)


@pytest.mark.parametrize("name", ["qwen3", "longcat_flash"])
def test_the_full_model_has_the_roles_of_the_tiny_one(name: str):
    tiny, full = roles(name), roles(name, "full")
    assert dict(tiny.layers[1]) == dict(full.layers[1])
    assert list(tiny.counts()) == list(full.counts())


def test_a_model_in_many_dies_has_the_same_roles():
    model = load(load_spec("deepseek_v3"), load_deployment("deepseek_a3_ep16"), "ge_graph", "full")
    apart, whole = find_roles(model).layers[5], roles("deepseek_v3", "full").layers[5]
    # What collectives bring together is no longer what the norm wrote.
    assert {**apart, "norm.mixer": whole["norm.mixer"]} == whole


def test_a_transformers_model():
    found = find_roles(load_real("llama"))
    assert below(found, 0, "attention.in") == [f"self_attn.{n}_proj" for n in "qkv"]
    assert [below(found, 0, f"attention.{n}") for n in "qkv"] == [[f"self_attn.{n}_proj"] for n in "qkv"]
    assert below(found, 0, "mlp.gate") == ["mlp.gate_proj"]
    assert below(found, 0, "mlp.up") == ["mlp.up_proj"]
    assert below(found, 0, "mlp.down") == ["mlp.down_proj"]


def test_experts_that_are_chosen_in_a_loop():
    found = find_roles(load_real("gpt_oss"))
    assert below(found, 2, "moe.router") == ["mlp.router"]
    assert below(found, 2, "moe.experts.up") == ["mlp.experts.gate_up_proj"]
    assert below(found, 2, "moe.experts.down") == ["mlp.experts.down_proj"]
    assert found.of(2, "mlp.up") == ()


class Layer(nn.Module):
    """Attention over a cache by bare parameters, and a gated feed-forward whose names say the opposite."""

    def __init__(self):
        super().__init__()
        self.beta = nn.Linear(8, 24)
        self.alpha = nn.Parameter(torch.randn(8, 8))
        self.down = nn.Linear(8, 16)
        self.gate = nn.Linear(8, 16)
        self.up = nn.Linear(16, 8)
        self.cache = None

    def forward(self, x):
        q, k, v = self.beta(x).chunk(3, -1)
        k, v = (torch.cat([old, new]) for old, new in zip(self.memory(x), (k, v), strict=True))
        x = x + torch.softmax(q @ k.T, -1) @ v @ self.alpha
        return x + self.up(torch.relu(self.down(x)) * self.gate(x))

    def memory(self, x):
        return torch.ones(2, 3, 8) if self.cache is None else self.cache


class Model(nn.Module):
    root, layers = "", "blocks"

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Layer() for _ in range(2))
        self.module = self

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def decode_once(self):
        return self(torch.zeros(1, 8))


@pytest.mark.parametrize("with_cache", [True, False])
def test_names_do_not_matter_and_weights_may_lie_loose_in_the_layer(with_cache: bool):
    model = Model()
    for block in model.blocks if with_cache else ():
        block.cache = [torch.zeros(3, 8), torch.zeros(3, 8)]
    assert dict(find_roles(model).layers[1]) == {
        "attention.in": ("blocks.1.beta",),
        "attention.out": ("blocks.1.alpha",),
        "feed_forward": ("blocks.1.down", "blocks.1.gate", "blocks.1.up"),
        "feed_forward.before": ("blocks.1.alpha",),
        "mlp.gate": ("blocks.1.down",),
        "mlp.up": ("blocks.1.gate",),
        "mlp.down": ("blocks.1.up",),
    }


def test_what_comes_before_a_feed_forward():
    found = roles("longcat_flash")
    assert below(found, 0, "feed_forward.before") == ["self_attn.0.o_proj", "self_attn.1.o_proj"]


class Parallel(Layer):
    """Attention and feed-forward read the same norm."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        y = self.norm(x)
        q, k, v = self.beta(y).chunk(3, -1)
        attention = torch.softmax(q @ torch.cat([k, k]).T, -1) @ torch.cat([v, v]) @ self.alpha
        return x + attention + self.up(torch.relu(self.down(y)) * self.gate(y))


def test_before_a_parallel_feed_forward_comes_the_norm():
    model = Model()
    model.blocks = nn.ModuleList(Parallel() for _ in range(2))
    layer = find_roles(model).layers[0]
    assert layer["feed_forward.before"] == ("blocks.0.norm",) == layer["norm.feed_forward"]
    assert layer["attention.out"] == ("blocks.0.alpha",)


class Helped(Layer):
    """With a mix of the residual before the attention, low-rank adapters on the MLP, and a small gate behind it."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Linear(8, 8), nn.Linear(8, 8)
        self.mlp = Adapted()

    def forward(self, x):
        x = x + torch.tanh(self.before(x))
        q, k, v = self.beta(x).chunk(3, -1)
        x = x + torch.softmax(q @ torch.cat([k, k]).T, -1) @ torch.cat([v, v]) @ self.alpha
        x = x + torch.tanh(self.after(x))
        return x + self.mlp(x)


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 640), nn.Linear(640, 8)
        self.a, self.b = nn.Linear(8, 1), nn.Linear(1, 640)

    def forward(self, x):
        return self.second(torch.relu(self.first(x) + self.b(self.a(x))))


def test_small_helpers_beside_an_mlp_are_no_mlp():
    model = Model()
    model.blocks = nn.ModuleList(Helped() for _ in range(2))
    layer = find_roles(model).layers[1]
    assert layer["mlp.up"] == ("blocks.1.mlp.first",)
    assert layer["mlp.down"] == ("blocks.1.mlp.second",)
    assert layer["feed_forward"] == ("blocks.1.mlp",)


class Experts(nn.Module):
    """Routed experts as slices of one matrix, and shared ones as a stack."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 4, bias=False)
        self.one, self.two = (nn.Parameter(torch.randn(4 * 16, 8)) for _ in range(2))
        self.stack, self.back = nn.Parameter(torch.randn(2, 8, 16)), nn.Parameter(torch.randn(2, 16, 8))

    def forward(self, x):
        share, chosen = torch.softmax(self.score(x), -1).topk(2)
        result = torch.zeros_like(x)
        for expert in range(4):
            row, place = torch.where(chosen == expert)
            up = torch.relu(x[row] @ self.one[16 * expert : 16 * expert + 16].T)
            result.index_add_(0, row, share[row, place, None] * (up @ self.two[16 * expert : 16 * expert + 16]))
        shared = torch.relu(torch.bmm(x.expand(2, *x.shape), self.stack)) * share.sum()
        return result + torch.bmm(shared, self.back).sum(0)


def test_experts_in_slices_and_shared_experts_in_a_stack():
    model = Model()
    model.blocks = nn.ModuleList(Helped() for _ in range(2))
    for block in model.blocks:
        block.mlp = Experts()
    layer = find_roles(model).layers[1]
    names = {role: [n.removeprefix("blocks.1.mlp.") for n in layer[role]] for role in layer if "moe" in role}
    assert names == {
        "moe.router": ["score"],
        "moe.experts.up": ["one"],
        "moe.experts.down": ["two"],
        "moe.shared.up": ["stack"],
        "moe.shared.down": ["back"],
    }


def test_of_layers_that_run_in_a_loop_the_first_round_counts():
    once, looped = Model(), Model()
    looped.forward = lambda x: [x := block(x) for _ in range(2) for block in looped.blocks][-1]
    assert find_roles(looped).layers == find_roles(once).layers


def test_every_role_is_explained_and_unknown_ones_are_helped():
    assert all(ROLES.values())
    assert unknown_role("mlp.up") is None
    assert unknown_role("mlp.upp") == "Did you mean `mlp.up`?"
    assert unknown_role("mlp.router") == "Did you mean `moe.router`?"
    assert "moe.router" in (unknown_role("zzz") or "")
