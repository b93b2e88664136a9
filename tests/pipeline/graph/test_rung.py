"""The rung as a whole: the real front end on the full-size model, sources that were changed, and workers that die."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from models.workload import Workload
from pipeline.graph import rung
from pipeline.graph.rung import ASSUMED, Limits, check_graph
from pipeline.graph.supervise import Ended
from pipeline.scopes import ScopeResolution
from tests.pipeline.graph.fake_front_end import make_front_end
from tests.pipeline.graph.lowered import GE, LONGCAT, NPUGRAPH_EX, QWEN3, lowered, prepared, real
from tests.pipeline.graph.toy_graphs import PLAN, ge_graph


@pytest.fixture(scope="module")
def longcat():
    return prepared(*LONGCAT, *GE)


@pytest.fixture(scope="module")
def source(longcat):
    return longcat.realisation.source.after


@pytest.fixture(scope="module")
def lowered_by_ge(longcat, source):
    return longcat, source


@pytest.fixture(scope="module")
def npugraph_ex():
    model = prepared(*LONGCAT, *NPUGRAPH_EX)
    return model, model.realisation.source.after


# ------------------------------------------------------------------------------------------------- the real front end


@real
def test_two_layers_of_longcat_at_full_size_pass():
    check = lowered(*LONGCAT, *GE)
    assert (check.rung.status, check.planned, check.found) == ("passed", 19, 19), check.rung.detail
    assert ASSUMED in check.rung.detail
    assert check.rung.zh
    assert 0 < check.peak_mib < 2048
    # The marks are at the kernels that compute what the plan names, not at something nearby.
    op = {f"{m.module}:{m.port}": check.graph.by_name[m.node].op for m in check.graph.marks}
    assert op["model.layers.0.self_attn.0.o_proj:output"] == "MatMul"
    assert op["model.layers.0.mlps.0.gate_up_proj:input"] == "DynamicQuant"
    assert op["model.layers.0.mlps.1.down_proj:output"] == "QuantBatchMatmulV3"
    # Collectives are those of the deployment, not what stands for them in one process.
    ops = {node.op for node in check.graph.nodes}
    assert {"HcomAllGather", "HcomReduceScatter", "HcomAllToAll", "MoeDistributeDispatchV2"} <= ops
    assert not {"Tile", "StridedSliceV2"} & ops
    assert check.to_json()["cmo"] == {"planned": 19, "found": 19}


# What each mutation of the source must be called, per entry of the plan; nothing else may be found.
EXPECTED = {
    ("missing", "target router"),
    ("size", "target gate_up_1"),
    ("dependency-is-input", "target kv_a_1"),
    ("source", "target q_b_1"),
    # Behind its target, the variable that the moved line names is another tensor.
    *((code, target) for code in ("late", "dependency") for target in ("target down_0", "target down_1")),
    ("order", "target down_0"),
    ("scope-open", "scope attention_0"),
    ("scope-open", "scope attention_1"),
    ("scope-kernels", "scope main_0"),
    ("scope-kernels", "scope main_1"),
}


@real
@pytest.mark.parametrize("runtime", ["ge_graph", "npugraph_ex"])
def test_every_change_of_the_source_is_found_and_named(runtime, request):
    model, source = request.getfixturevalue("lowered_by_ge" if runtime == "ge_graph" else "npugraph_ex")
    check = check_graph(model, mutated(source))
    assert check.rung.status == "failed"
    assert {(f.code, re.match(r"(target|scope) \w+", f.entry)[0]) for f in check.findings} == EXPECTED
    assert "target router, layer 0 (model.layers.0.mlp.router.classifier.weight)" in check.rung.detail
    assert check.found == 17
    assert ASSUMED in check.rung.detail


def mutated(source):
    """The source with a mutation of each kind, of one target or scope each.

    A prefetch is removed, one has another size, one waits for a weight, one reads a copy, one comes after its target;
    a scope is closed before its last module is called, and in another one the host reads a value.
    """
    lines = source.splitlines()

    def at(text):
        (number,) = (i for i, line in enumerate(lines) if text in line)
        return number

    def replace(weight, old, new):
        number = at(f"npu_prefetch(prefetch, {weight},")
        changed = re.sub(old, new, lines[number])
        assert changed != lines[number]
        lines[number] = changed

    other = "self.linked_self_attn_1"
    replace("self.linked_mlp.router.classifier.weight", r"npu_prefetch\(.*", "pass")
    replace("self.linked_mlps_1.gate_up_proj.weight", r"9 \* 1024", "8 * 1024")
    replace(f"{other}.kv_a_proj_with_mqa.weight", r"merged", f"{other}.o_proj.weight")
    replace(f"{other}.q_b_proj.weight", r"q_b_proj\.weight", "q_b_proj.weight.data")
    moved = lines.pop(at("npu_prefetch(prefetch, self.down_proj.weight,"))
    lines.insert(at("= self.down_proj(x, scale)") + 1, moved)
    last = at("residual = self.post_attention_layernorm[0](")
    assert lines[last].startswith(" " * 12)
    lines[last] = lines[last][4:]  # behind the with statement
    lines.insert(
        at("hidden_states = self.mlps[0](") + 1, " " * 12 + "hidden_states = hidden_states * float(hidden_states[0, 0])"
    )
    return "\n".join(lines) + "\n"


@real
def test_the_wrapped_model_makes_the_planned_graph():
    check = lowered(*QWEN3, *GE, wrap=True)
    planned = len(prepared(*QWEN3, *GE).resolution.plan.prefetch)
    assert (check.rung.status, check.found) == ("passed", planned), check.rung.detail


@real
def test_a_refusal_of_the_front_end_names_the_recipes_key(longcat, source):
    pattern = r"(router\.classifier\.weight, attn_output, )[^)]*\)"
    broken, count = re.subn(pattern, r"\g<1>0)", source)
    assert count == 1
    check = check_graph(longcat, broken)
    assert check.rung.status == "failed"
    assert "a prefetch of 0 bytes" in check.rung.detail
    assert "set by recipe.prefetch.targets.router.max_size" in check.rung.detail


@real
def test_npugraph_ex_lowers_to_an_fx_graph_with_streams_and_events():
    check = lowered(*LONGCAT, *NPUGRAPH_EX)
    assert (check.rung.status, check.found) == ("passed", 19), check.rung.detail
    assert check.graph.kind == "fx"
    (stream,) = {node.attrs["stream"] for node in check.graph.prefetches}
    # The experts run on another side stream, within their core limits.
    moe = {n.attrs.get("stream") for n in check.graph.nodes if n.op == "npu.npu_moe_distribute_dispatch_v2.default"}
    assert len(moe) == 1
    assert not moe & {stream, None}


@real
def test_npugraph_ex_without_the_join_of_the_experts_is_a_race(npugraph_ex):
    model, source = npugraph_ex
    broken, count = re.subn(r'ops\.join\("moe", two_streams\)', "pass", source)
    assert count == 1
    check = check_graph(model, broken)
    assert check.rung.status == "failed"
    assert {f.code for f in check.findings} == {"race"}
    assert "npu_moe_distribute_combine_v2" in check.rung.detail


# ------------------------------------------------------------------------- without it, and with workers that go wrong


def toy(exe_mode="ge_graph"):
    from dataclasses import replace

    plan = replace(PLAN, exe_mode=exe_mode)
    machine = SimpleNamespace(generation="a3")
    experiment = SimpleNamespace(config={"model": {}, "deployment": {}}, machine=machine)
    resolution = SimpleNamespace(plan=plan, scopes=ScopeResolution())
    return SimpleNamespace(resolution=resolution, experiment=experiment, workload=Workload(()))


def test_without_a_front_end_it_did_not_run_and_says_how_to_get_it(tmp_path):
    check = check_graph(toy(), "", folder=tmp_path / "none")
    assert check.rung.status == "not_run"
    assert "python -m pipeline.graph.fetch" in check.rung.detail
    assert (check.planned, check.found) == (len(PLAN.prefetch), None)


def test_an_eager_step_has_no_graph(tmp_path):
    check = check_graph(toy("eager"), "", folder=tmp_path / "none")
    assert check.rung.status == "not_run"
    assert "eager" in check.rung.detail


def test_a_broken_folder_can_not_be_used(tmp_path):
    folder = make_front_end(tmp_path / "fe")
    (folder / "torch_npu" / "__init__.py").unlink()
    check = check_graph(toy(), "", folder=folder)
    assert check.rung.status == "could_not_check"
    assert "__init__.py is missing" in check.rung.detail


def test_the_front_end_of_another_version_can_not_be_used(tmp_path):
    check = check_graph(toy(), "", folder=make_front_end(tmp_path / "fe", torch="2.9.1"))
    assert check.rung.status == "could_not_check"
    assert "2.9.1" in check.rung.detail


GIB = 1 << 30


@pytest.mark.parametrize(
    ("code", "limits", "said"),
    [
        ("import time; time.sleep(60)", Limits(stall=1.5), "it hung ("),
        ("x = []\nwhile True: x.append(b'x' * (20 << 20))", Limits(memory_bytes=GIB // 2), "above its memory limit"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", Limits(), "killed by signal 11"),
        ("import os; os.abort()", Limits(), "killed by signal 6"),
        ("import os; print('No NPUs'); os._exit(7)", Limits(), "exit code 7 and no result (its last words: No NPUs)"),
        ("raise RuntimeError('libhccl is odd')", Limits(), "import the front end: RuntimeError: libhccl is odd"),
    ],
    ids=["hangs", "eats memory", "segfaults", "aborts", "exits", "raises"],
)
def test_a_worker_that_goes_wrong_could_not_check(tmp_path, code, limits, said):
    check = check_graph(toy(), "", limits, make_front_end(tmp_path / "fe", code))
    assert check.rung.status == "could_not_check"
    assert said in check.rung.detail
    assert check.found is None
    assert check.seconds < 20
    assert ("--again" in check.rung.detail) == ("import the front end" in said)


def test_a_worker_killed_from_outside_could_not_check_and_leaves_nothing(tmp_path):
    pid_file = tmp_path / "pid"
    code = f"import os, time\nwith open({str(pid_file)!r}, 'w') as f: f.write(str(os.getpid()))\ntime.sleep(60)"
    folder = make_front_end(tmp_path / "fe", code)
    checks = []
    thread = threading.Thread(target=lambda: checks.append(check_graph(toy(), "", folder=folder)))
    thread.start()
    while not (pid_file.exists() and pid_file.read_text()):
        assert thread.is_alive()
        time.sleep(0.02)
    pid = int(pid_file.read_text())
    request = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-3].decode()
    os.kill(pid, signal.SIGKILL)
    thread.join(10)
    assert checks[0].rung.status == "could_not_check"
    assert "killed by signal 9" in checks[0].rung.detail
    assert not Path(f"/proc/{pid}").exists()
    assert request.endswith("request.json")
    assert not Path(request).parent.exists()


def test_sigterm_to_the_parent_leaves_no_worker_and_no_files(tmp_path):
    pid_file, temporary = tmp_path / "pid", tmp_path / "tmp"
    temporary.mkdir()
    code = f"import os, time\nwith open({str(pid_file)!r}, 'w') as f: f.write(str(os.getpid()))\ntime.sleep(60)"
    folder = make_front_end(tmp_path / "fe", code)
    program = f"from tests.pipeline.graph.test_rung import *\ncheck_graph(toy(), '', folder=Path({str(folder)!r}))"
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parents[3])}
    parent = subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE)
    while not (pid_file.exists() and pid_file.read_text()):
        assert parent.poll() is None
        time.sleep(0.02)
    assert [path.name[:18] for path in temporary.glob("npu-*")] == ["npu-recipes-graph-"]
    parent.terminate()
    _, said = parent.communicate(timeout=30)
    assert said.splitlines()[-1] == b"KeyboardInterrupt"
    assert not list(temporary.glob("npu-*"))
    assert not Path(f"/proc/{pid_file.read_text()}").exists()


# ------------------------------------------------------------------------------------ what a worker's answer comes to


@pytest.fixture
def answer(monkeypatch, tmp_path):
    """Have the worker answer this."""

    def set_answer(response):
        def supervise(command, *args):
            Path(command[-1]).write_text(json.dumps({"peak_kib": 1024, "stage": "lowering", **response}))
            Path(args[1]).write_text("")
            return Ended("exited", 0, 1.0, 0)

        monkeypatch.setattr(rung, "supervise", supervise)
        return check_graph(toy(), "source", folder=make_front_end(tmp_path / "fe"))

    return set_answer


def test_a_graph_as_planned_passes(answer):
    check = answer({"graph": ge_graph().to_json(), "cann": False})
    assert check.rung.status == "passed"
    assert (check.found, check.nodes, check.peak_mib) == (5, len(ge_graph().nodes), 1.0)
    assert ASSUMED in check.rung.detail


def test_deviations_are_counted_and_the_text_stays_short(answer):
    from dataclasses import replace as changed

    graph = ge_graph()
    without = changed(graph, nodes=tuple(node for node in graph.nodes if node.op != "Cmo"))
    check = answer({"graph": without.to_json(), "cann": False})
    assert check.rung.status == "failed" and len(check.findings) == len(PLAN.prefetch)
    assert check.rung.detail.count("target ") <= 5
    assert f"共 {len(check.findings)} 处(missing x {len(check.findings)})" in check.rung.zh


def test_nodes_that_wait_for_each_other_fail(answer):
    from tests.pipeline.graph.toy_graphs import change

    graph = change(ge_graph(), "o_proj_0", controls=("down_0",))
    check = answer({"graph": graph.to_json(), "cann": False})
    assert check.rung.status == "failed"
    assert "wait for each other" in check.rung.detail


@pytest.mark.parametrize(
    ("stage", "error_type", "status"),
    [
        ("front_end", "ImportError", "could_not_check"),
        ("model", "RuntimeError", "could_not_check"),
        ("source", "SyntaxError", "failed"),
        ("source", "ModuleNotFoundError", "failed"),
        ("source", "MemoryError", "could_not_check"),
        ("lowering", "BackendCompilerFailed", "failed"),
        ("lowering", "ImportError", "could_not_check"),
        ("lowering", "MemoryError", "could_not_check"),
    ],
)
def test_errors_about_the_model_fail_and_others_could_not_check(answer, stage, error_type, status):
    check = answer({"stage": stage, "error": {"type": error_type, "message": "oh", "trace": ""}})
    assert check.rung.status == status
    assert "oh" in check.rung.detail
    assert check.found is None
