"""Helpers for comparisons with transformers' models and with compiled ones."""

import torch
from torch import nn

from models.convert import from_transformers
from models.loading import LoadedModel
from models.weights import install


def seeded(model: nn.Module) -> nn.Module:
    """Seeded weights that make all parts count: norms differ from 1, routers prefer some experts."""
    generator = torch.Generator().manual_seed(7)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        noise = torch.randn(tensor.shape, generator=generator)
        if "norm" in name:
            tensor.data.copy_(1 + 0.1 * noise)
        elif "e_score" in name:
            tensor.data.copy_(0.01 * noise)
        elif isinstance(tensor, nn.Parameter):
            tensor.data.copy_(0.1 * noise)
    return model.eval().float()


def reference_outputs(model: nn.Module, decode_steps: int) -> list[torch.Tensor]:
    """Logits of transformers' model for the prompt that `LoadedModel.run` uses, then of greedy decode steps."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(model.config.vocab_size, (10,), generator=generator).view(2, 5)
    cache, outputs = None, []
    with torch.no_grad():
        for _ in range(decode_steps + 1):
            result = model(input_ids=ids, cache=cache, use_cache=True)
            cache, ids = result.cache, result.logits[:, -1:].argmax(-1)
            outputs.append(result.logits.flatten(0, 1))
    return outputs


def assert_equals_reference(loaded: LoadedModel, model: nn.Module, decode_steps: int = 8) -> None:
    """Prefill and every decode step give transformers' logits, from the same weights, and the logits differ."""
    install(loaded.module, from_transformers(loaded.spec.architecture, model.state_dict(), loaded.module.config))
    outputs = loaded.run(decode_steps=decode_steps)
    for step, (mine, expected) in enumerate(zip(outputs, reference_outputs(model, decode_steps), strict=True)):
        assert (mine - expected).abs().max() < 1e-4, step
    assert outputs[-1].std() > 0.1


def relative_error(exact: LoadedModel, rough: LoadedModel, model: nn.Module) -> torch.Tensor:
    """Error of each prompt token's logits when the same weights are installed in `rough` (quantised)."""
    outputs = []
    for loaded in (exact, rough):
        install(loaded.module, from_transformers(loaded.spec.architecture, model.state_dict(), loaded.module.config))
        outputs.append(loaded.run(decode_steps=0)[0])
    return (outputs[0] - outputs[1]).norm(dim=-1) / outputs[0].norm(dim=-1)


def assert_compiles(loaded: LoadedModel) -> None:
    """Prefill and decode compile without a break, into one graph for all decode steps, and change no bit."""
    torch._dynamo.reset()
    counted: list[str] = []

    def backend(graph: torch.fx.GraphModule, _inputs: list) -> object:
        counted.append("graph")
        return graph.forward

    compiled = torch.compile(loaded.module, fullgraph=True, dynamic=False, backend=backend)
    outputs = loaded.run(compiled, decode_steps=2)
    assert all(torch.equal(a, b) for a, b in zip(outputs, loaded.run(decode_steps=2), strict=True))
    assert len(counted) == 2
