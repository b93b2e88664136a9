"""The worker process: `python -m pipeline.graph.worker REQUEST RESPONSE`, both JSON files.

Lowers one decode step and writes the graph, or what went wrong. It may be killed at any time: the response is put in
its place in one step, and whoever waits for it draws its conclusions from its absence.
"""

import ctypes
import gc
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

_PR_SET_PDEATHSIG = 1
_STAGES = ("front_end", "model", "source", "lowering")


def main(request_file: str, response_file: str) -> None:
    """Answer one request and end the process, without any of the exit handlers of what was imported."""
    request = json.loads(Path(request_file).read_text())
    _die_with(request["parent"])
    try:
        response = _answer(request)
    except BaseException as error:
        response = {"error": {"type": type(error).__name__, "message": str(error), "trace": traceback.format_exc()}}
    response["stage"] = _stage
    response["peak_kib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    temporary = Path(f"{response_file}.new")
    temporary.write_text(json.dumps(response))
    os.replace(temporary, response_file)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


_stage = _STAGES[0]


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    global _stage
    from pipeline.graph import front_end

    warnings.simplefilter("ignore")  # of the front end, about the front end
    gc.disable()  # the process lives for one lowering, whose objects live as long: 7 % of its time
    begin = time.perf_counter()
    directory = Path(request["directory"])
    target = front_end.TARGETS[request["target"]]
    exe_mode = request["plan"]["exe_mode"]
    cann = front_end.start(request["front_end"], request["package"], directory, target, exe_mode)
    imported = time.perf_counter()

    from models import ops
    from models.deployment import Deployment
    from models.loading import ModelSpec, load
    from pipeline.graph.lowering import lower
    from pipeline.graph.marks import mark_modules
    from pipeline.graph.process_groups import join_fake_groups
    from transforms.plan import Plan

    _stage = "model"
    plan = Plan.from_json(request["plan"])
    spec = ModelSpec.from_mapping(request["model"])
    deployment = Deployment.from_mapping(request["deployment"])
    loaded = load(spec, deployment, exe_mode, "full")
    join_fake_groups(deployment)
    _stage = "source"
    model = _transformed(loaded, plan, request.get("source"), directory)
    mark_modules(model, _ports(plan))
    _stage = "lowering"
    with ops.use_npu_operators(exe_mode):
        graph = lower(exe_mode, model, loaded.decode_once)
    seconds = {"import": imported - begin, "lower": time.perf_counter() - imported}
    return {"graph": graph.to_json(), "cann": cann, "seconds": seconds}


def _transformed(loaded: Any, plan: Any, source: str | None, directory: Path) -> Any:
    """The model with the plan in it, switches on: from rewritten source, or wrapped if there is none."""
    switches = {"enable_prefetch": bool(plan.prefetch), "enable_superkernel": bool(plan.scopes)}
    if source is not None:
        from transforms.siblings import load_sibling

        module: ModuleType = load_sibling(loaded.python_module, source, directory / "transformed")
        return loaded.rebuild(module, **switches)
    from transforms.wrap import wrap

    wrap(loaded, plan)
    return loaded.module


def _ports(plan: Any) -> list[tuple[str, str]]:
    found = [(p.dependency, p.port) for p in plan.prefetch]
    for scope in plan.scopes:
        found += [(scope.first, "input"), (scope.last, "output")]
    return found


def _die_with(parent: int) -> None:
    """Be killed when the parent ends, however it ends (Linux)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
