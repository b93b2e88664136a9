"""npugraph_ex: prefetches run on one side stream, each behind an event after its dependency, joined at the end."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from models import prefetch
from models.problems import RefusedError
from tests.transforms.text_models import load_text, plan_for
from transforms.registry import realise
from transforms.source import rewrite

FILE = """\
import torch
from torch import nn
{imports}

class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = nn.Linear(8, 8)
        self.mlp = nn.Linear(8, 8)

    def forward(self, hidden_states, is_prefill):
        hidden_states = self.attention(hidden_states)
        return self.mlp(hidden_states)


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([Layer(config) for _ in range(2)])
        self.norm = nn.LayerNorm(8)

    def forward(self, hidden_states, is_prefill):
        for layer in self.layers:
            hidden_states = layer(hidden_states, is_prefill)
        return self.norm(hidden_states)
"""
OURS = "\nfrom models.prefetch import check_prefetch, join_prefetch, npu_prefetch\n"
FILES = {"our helpers": FILE.format(imports=OURS), "helpers of its own": FILE.format(imports="")}
TARGETS = {"layers.{i}.mlp.weight": "layers.{i}.attention", "layers.{i+1}.attention.weight": "layers.{i}.mlp"}


class FakeNPU:
    """`torch.npu` with streams and events that only note what happens, in order."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.streams: list[Any] = []
        self.main = SimpleNamespace(name="main")
        self.current = self.main
        fake = self

        class Stream:
            def __init__(self) -> None:
                self.name = f"side {len(fake.streams)}"
                fake.streams.append(self)

        class Event:
            def record(self, stream: Any) -> None:
                fake.log.append(("record", id(self), stream.name))

            def wait(self, stream: Any) -> None:
                fake.log.append(("wait", id(self), stream.name))

        self.Stream, self.Event = Stream, Event
        self.alive: list[Any] = []

    def current_stream(self) -> Any:
        return self.current

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def append(self, call: Any) -> None:
        """As an observer of prefetches."""
        self.log.append(("prefetch", self.current.name, call.weight.data_ptr()))


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> FakeNPU:
    fake = FakeNPU()
    monkeypatch.setattr(torch, "npu", fake, raising=False)
    monkeypatch.setattr(prefetch, "_side_stream", None)
    return fake


def run(loaded: Any, realisation: str, file: Path, npu: FakeNPU, steps: int = 1) -> list[tuple[Any, ...]]:
    """What happened in the decode steps, calls of leaf modules included."""
    plan = plan_for(loaded, TARGETS, exe_mode="npugraph_ex")
    if realisation == "source":
        result = rewrite(loaded, plan)
        loaded.rebuild = with_mode(loaded.rebuild)
        assert result.diff
    built = realise(realisation, loaded, plan).build(True, file)
    module: nn.Module = built if isinstance(built, nn.Module) else built.__enter__()
    for name, child in module.named_modules():
        child.register_forward_hook(lambda m, a, out, name=name: npu.log.append(("made", name)), prepend=True)
    with prefetch.observe(npu):  # type: ignore[arg-type]
        loaded.run(module, decode_steps=steps, before_decode=npu.log.clear)
    return npu.log


def with_mode(rebuild: Any) -> Any:
    return lambda module, **switches: rebuild(module, **{**switches, "exe_mode": "npugraph_ex"})


@pytest.mark.parametrize("realisation", ["source", "wrap"])
@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_event_behind_the_dependency_wait_issue_and_join(
    text: str, realisation: str, npu: FakeNPU, tmp_path: Path
) -> None:
    loaded = load_text(text, tmp_path)
    log = run(loaded, realisation, tmp_path / "out", npu)
    assert len(npu.streams) == 1
    issued = [n for n, event in enumerate(log) if event[0] == "prefetch"]
    assert len(issued) == 3
    for n in issued:
        assert log[n][1] == "side 0"
        (record, event, on), (wait, same, of) = log[n - 2 : n]
        assert (record, on, wait, of) == ("record", "main", "wait", "side 0") and event == same
    made = [[name for what, name in (e for e in log[:n] if e[0] == "made")][-1] for n in issued]
    dependencies = ["layers.0.attention", "layers.0.mlp", "layers.1.attention"]
    assert [name if name in dependencies else f"{name}.mlp" for name in made] == dependencies
    (record, event, on), (wait, same, of) = [e for e in log if e[0] in ("record", "wait")][-2:]
    assert (record, on, wait, of) == ("record", "side 0", "wait", "main") and event == same
    join = log.index(("wait", event, "main"))
    assert max(issued) < join and ("made", "norm") in log[:join]


def test_nothing_of_it_happens_in_prefill_or_in_other_modes(npu: FakeNPU, tmp_path: Path) -> None:
    loaded = load_text(FILES["our helpers"], tmp_path)
    plan = plan_for(loaded, TARGETS, exe_mode="npugraph_ex")
    python_module = realise("source", loaded, plan)
    off = python_module.build(False, tmp_path / "out")
    assert not npu.streams
    rewritten = sys.modules[type(off).__module__]
    for mode, streams in (("ge_graph", 0), ("eager", 0), ("npugraph_ex", 1)):
        module = loaded.rebuild(rewritten, enable_prefetch=True, exe_mode=mode)
        assert len(npu.streams) == streams
        seen: list[int] = []
        npu.log.clear()
        loaded.run(module, decode_steps=1, before_decode=lambda seen=seen: seen.append(len(npu.log)))
        assert seen == [0]
        assert bool(npu.log) == bool(streams)


def test_source_of_another_mode_is_refused_by_the_model(tmp_path: Path) -> None:
    loaded = load_text(FILES["helpers of its own"], tmp_path)
    module = realise("source", loaded, plan_for(loaded, TARGETS)).build(True, tmp_path / "out")
    rewritten = sys.modules[type(module).__module__]
    with pytest.raises(ValueError, match="needs source that was transformed for it"):
        loaded.rebuild(rewritten, enable_prefetch=True, exe_mode="npugraph_ex")


def test_a_helper_of_the_tree_without_a_known_stream_is_refused(tmp_path: Path) -> None:
    text = FILE.format(imports="\nfrom models.prefetch import npu_prefetch\n")
    loaded = load_text(text, tmp_path)
    with pytest.raises(RefusedError, match="has an npu_prefetch of its own"):
        rewrite(loaded, plan_for(loaded, TARGETS, exe_mode="npugraph_ex"))


def test_a_model_with_several_returns_can_not_be_joined(tmp_path: Path) -> None:
    text = FILES["our helpers"].replace(
        "        return self.norm(",
        "        if is_prefill is None:\n            return hidden_states\n        return self.norm(",
    )
    loaded = load_text(text, tmp_path)
    with pytest.raises(RefusedError, match="does not end in its only return"):
        rewrite(loaded, plan_for(loaded, TARGETS, exe_mode="npugraph_ex"))
