#!/usr/bin/env python3
"""Compare baseline and optimised on an NPU: interleaved blocks, a 95 % interval, the five-point checklist.

This file stands alone: Python 3.9 or newer, torch and torch_npu, nothing else. Three ways to use it:

1. A function of yours builds the model with the prefetch switch off and on (one process, the better comparison):

       python run_on_npu.py --build my_model.py:build
       torchrun --nproc-per-node 8 run_on_npu.py --build my_model.py:build      # every rank runs the same schedule

       def build(enable_prefetch, share=None):
           model = ...                  # the patched model, config.enable_prefetch = enable_prefetch
           inputs = ...                 # of one decode step: a tuple, a dict, or a function of the step number
           return model, inputs
       # `share` is the baseline's model when the optimised one is built: take its weights, do not load them twice.

2. Two commands that print the latency of a decode step (a run of a command is a block; needs several runs each):

       python run_on_npu.py --baseline "bash infer.sh off" --optimized "bash infer.sh on" \\
           --latency "decode: ([0-9.]+) ms"

3. With either of them, two profiles that you have (kernel_details.csv), for the points that need kernel times:

       python run_on_npu.py --build ... --kernels-baseline off/kernel_details.csv \\
           --kernels-optimized on/kernel_details.csv

With `--profile DIR` the first way makes these profiles itself. `--device cpu` only tries the script out.
Exit code: 0 it ran, whatever the outcome; 1 it failed or the outputs differ; 2 wrong use.
"""

from __future__ import annotations

import argparse
import csv
import glob
import importlib
import importlib.util
import inspect
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

# Written by the trial that this script belongs to.
SETTINGS: dict[str, Any] = {"title": "", "plan_hash": "", "mode": "eager", "targets": [], "modelled": None}

# Two-sided 95 % quantiles of Student's t for 1, 2, 3, ... degrees of freedom.
T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]
T95 += [2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]
# A kernel or tail that is slower by less than this is called stable.
STABLE_PERCENT = 3.0


class WrongUse(Exception):
    """The arguments or the environment do not allow a comparison; the message says what to do."""

    code = 2


class Failed(WrongUse):
    """A side could not be run."""

    code = 1


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    try:
        result = compare(options)
    except WrongUse as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    if result is None:  # not the first rank
        return 0
    print(render(result))
    with open(options.output, "w") as file:
        json.dump(result, file, indent=2)
        file.write("\n")
    print(f"\nwritten: {options.output}")
    return 1 if result["outcome"] == "failed" else 0


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], epilog="The head of this file shows complete examples."
    )
    parser.add_argument("--build", help="FILE.py:function or package.module:function")
    parser.add_argument("--baseline", help="command of the baseline")
    parser.add_argument("--optimized", help="command of the optimised side")
    parser.add_argument("--latency", help="regular expression with one group: the latency in the command's output")
    parser.add_argument("--device", default="npu", help="npu (default), npu:3, or cpu to try the script out")
    parser.add_argument(
        "--mode",
        choices=["eager", "ge_graph", "npugraph_ex", "none"],
        help="how to compile the model; none: build() returns what is to be called. Default: {} on an NPU".format(
            SETTINGS["mode"]
        ),
    )
    parser.add_argument(
        "--blocks", type=int, default=32, help="blocks, a multiple of 4: off on on off ... (default 32)"
    )
    parser.add_argument("--steps", type=int, default=20, help="decode steps of a block (default 20)")
    parser.add_argument("--warmup", type=int, default=5, help="uncounted steps (or runs) of each side (default 5)")
    parser.add_argument("--compare", type=int, default=3, help="steps whose outputs are compared (default 3)")
    parser.add_argument("--tolerance", type=float, default=0.0, help="allowed difference of outputs (default 0: bits)")
    parser.add_argument("--profile", help="folder for a torch_npu profile of each side")
    parser.add_argument("--kernels-baseline", help="kernel_details.csv with the switch off")
    parser.add_argument("--kernels-optimized", help="kernel_details.csv with the switch on")
    parser.add_argument("--output", default="npu_result.json")
    return parser.parse_args(argv)


def compare(options: argparse.Namespace) -> dict[str, Any] | None:
    """Everything that was found, as one JSON-able mapping; None on ranks other than the first."""
    if options.blocks < 8 or options.blocks % 4:
        raise WrongUse("--blocks must be a multiple of 4 and at least 8: a unit is off on on off")
    if options.steps < 1 or options.warmup < 0 or options.compare < 0:
        raise WrongUse("--steps must be positive, --warmup and --compare not negative")
    if bool(options.kernels_baseline) != bool(options.kernels_optimized):
        raise WrongUse("--kernels-baseline and --kernels-optimized go together")
    for path in (options.kernels_baseline, options.kernels_optimized):
        if path and not os.path.isfile(path):
            raise WrongUse(f"no such file: {path}")
    if options.profile and not options.device.startswith("npu"):
        raise WrongUse("--profile needs an NPU")
    if options.build:
        sides: Any = ModelSides(options)
    elif options.baseline and options.optimized and options.latency:
        sides = CommandSides(options)
    else:
        raise WrongUse("give --build, or all of --baseline, --optimized and --latency")

    same = sides.same_outputs()
    for switch in (False, True):
        sides.warm_up(switch)
    blocks: dict[bool, list[list[float]]] = {False: [], True: []}  # per block: the times of its steps, us
    for number in range(options.blocks):
        switch = number % 4 in (1, 2)
        blocks[switch].append(sides.block(switch))
    kernels = sides.kernels()
    if options.kernels_baseline:
        kernels = [read_kernels(options.kernels_baseline), read_kernels(options.kernels_optimized)]
    if not sides.first_rank:
        return None
    return judge(options, sides, same, blocks, kernels)


# --- the two sides -----------------------------------------------------------------------------------------------


class ModelSides:
    """Baseline and optimised built by the user's function in this process."""

    def __init__(self, options: argparse.Namespace) -> None:
        try:
            import torch
        except ImportError:
            raise WrongUse("torch is not installed in this Python") from None
        self.torch: Any = torch  # torch.npu exists only once torch_npu is imported
        self.options = options
        self.npu = options.device.startswith("npu")
        if self.npu:
            try:
                import torch_npu
            except ImportError:
                raise WrongUse("torch_npu is not installed; `--device cpu` tries the script out without it") from None
            if not self.torch.npu.is_available():
                raise WrongUse("torch_npu finds no NPU; `--device cpu` tries the script out without one")
            self.torch_npu = torch_npu
            index = options.device.partition(":")[2] or os.environ.get("LOCAL_RANK", "0")
            self.torch.npu.set_device(int(index))
            name = self.torch.npu.get_device_name(int(index))
            self.device = f"{name}, torch {torch.__version__}, torch_npu {torch_npu.__version__}"
        else:
            self.device = f"cpu, torch {torch.__version__} (only tries the script out: says nothing about an NPU)"
        build = load_function(options.build)
        shares = "share" in inspect.signature(build).parameters
        self.models: dict[bool, Any] = {}
        self.inputs: dict[bool, Any] = {}
        self.calls: dict[bool, Any] = {}
        for switch in (False, True):
            keywords = {"share": self.models[False]} if shares and switch else {}
            built = build(switch, **keywords)
            if not (isinstance(built, (tuple, list)) and len(built) == 2):
                raise WrongUse(f"{options.build} must return (model, inputs)")
            self.models[switch], self.inputs[switch] = built
            self.calls[switch] = self.compiled(built[0])
        self.step_number = {False: 0, True: 0}

    @property
    def first_rank(self) -> bool:
        return not self.distributed() or self.torch.distributed.get_rank() == 0

    def distributed(self) -> bool:
        d = self.torch.distributed
        return d.is_available() and d.is_initialized()

    def compiled(self, model: Any) -> Any:
        mode = self.options.mode or (SETTINGS["mode"] if self.npu else "eager")
        if mode in ("eager", "none"):
            return model
        if not self.npu:
            raise WrongUse(f"--mode {mode} needs an NPU")
        if mode == "npugraph_ex":
            return self.torch.compile(model, backend="npugraph_ex", dynamic=False, fullgraph=True)
        import torchair

        backend = torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())
        return self.torch.compile(model, backend=backend, dynamic=False, fullgraph=True)

    def step(self, switch: bool) -> Any:
        inputs = self.inputs[switch]
        if callable(inputs):
            inputs = inputs(self.step_number[switch])
        self.step_number[switch] += 1
        with self.torch.no_grad():
            return self.calls[switch](**inputs) if isinstance(inputs, dict) else self.calls[switch](*as_tuple(inputs))

    def synchronize(self) -> None:
        if self.npu:
            self.torch.npu.synchronize()
        if self.distributed():
            self.torch.distributed.barrier()

    def same_outputs(self) -> tuple[bool | None, str]:
        """`(True | False | None, words)`; both sides start from the state that build() left."""
        if not self.options.compare:
            return None, "not compared (--compare 0)"
        outputs: dict[bool, list[Any]] = {False: [], True: []}
        for switch in (False, True):
            for _ in range(self.options.compare):
                outputs[switch].append([t.detach().to("cpu").clone() for t in tensors(self.step(switch))])
        answer, words = self.differences(outputs)
        if self.distributed():  # one rank that differs is enough
            flag = self.torch.tensor([0 if answer else 1], device="npu" if self.npu else "cpu")
            self.torch.distributed.all_reduce(flag)
            if answer and int(flag):
                answer, words = False, "outputs differ on another rank"
        return answer, words

    def differences(self, outputs: dict[bool, list[Any]]) -> tuple[bool, str]:
        """The first difference between the two lists of outputs, in words."""
        count = 0
        for step in range(self.options.compare):
            first, second = outputs[False][step], outputs[True][step]
            if not first or len(first) != len(second):
                return False, f"step {step}: {len(first)} tensors against {len(second)}"
            for index, tensor in enumerate(first):
                other = second[index]
                count += tensor.numel()
                if tensor.shape != other.shape or tensor.dtype != other.dtype:
                    return False, f"step {step}: {list(tensor.shape)} against {list(other.shape)}"
                gap = float((tensor.double() - other.double()).abs().max()) if tensor.numel() else 0.0
                if not gap <= self.options.tolerance:
                    return False, f"step {step}: outputs differ by up to {gap:.3g}"
        return True, f"{count} values of {self.options.compare} steps agree (tolerance {self.options.tolerance:g})"

    def warm_up(self, switch: bool) -> None:
        for _ in range(self.options.warmup):
            self.step(switch)
        self.synchronize()

    def block(self, switch: bool) -> list[float]:
        """Times of the block's steps, us; the slowest rank's if there are several."""
        self.synchronize()
        if self.npu:
            events = [self.torch.npu.Event(enable_timing=True) for _ in range(self.options.steps + 1)]
            events[0].record()
            for event in events[1:]:
                self.step(switch)
                event.record()
            self.torch.npu.synchronize()
            times = [events[k].elapsed_time(events[k + 1]) * 1e3 for k in range(self.options.steps)]
        else:
            times = []
            for _ in range(self.options.steps):
                start = time.perf_counter()
                self.step(switch)
                times.append((time.perf_counter() - start) * 1e6)
        if self.distributed():
            together = self.torch.tensor(times, device="npu" if self.npu else "cpu", dtype=self.torch.float32)
            self.torch.distributed.all_reduce(together, op=self.torch.distributed.ReduceOp.MAX)
            times = together.tolist()
        return times

    def kernels(self) -> list[dict[str, float]] | None:
        """Kernel times of both sides from profiles made now; None without `--profile`."""
        if not self.options.profile:
            return None
        rank = self.torch.distributed.get_rank() if self.distributed() else 0
        found = []
        for switch in (False, True):
            side = "optimized" if switch else "baseline"
            folder = os.path.join(self.options.profile, f"{side}_rank{rank}")
            profiler = self.torch_npu.profiler
            with profiler.profile(
                activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
                on_trace_ready=profiler.tensorboard_trace_handler(folder),
            ):
                for _ in range(5):
                    self.step(switch)
                self.torch.npu.synchronize()
            files = sorted(
                glob.glob(os.path.join(folder, "**", "kernel_details.csv"), recursive=True), key=os.path.getmtime
            )
            if not files:
                print(f"the profiler left no kernel_details.csv in {folder}", file=sys.stderr)
                return None
            found.append(read_kernels(files[-1]))
        return found


class CommandSides:
    """Baseline and optimised as commands; one run is one block."""

    first_rank = True

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = "as the commands say"
        try:
            self.pattern = re.compile(options.latency)
        except re.error as error:
            raise WrongUse(f"--latency: {error}") from None
        if self.pattern.groups != 1:
            raise WrongUse("--latency needs exactly one group, e.g. 'decode: ([0-9.]+) ms'")
        self.factor = 1e3 if re.search(r"\bms\b", options.latency) else 1.0

    def same_outputs(self) -> tuple[bool | None, str]:
        return None, "not compared: the commands' outputs are not known"

    def warm_up(self, switch: bool) -> None:
        if self.options.warmup:
            self.block(switch)  # one run warms caches and compilers; each run warms its own process up anyway

    def block(self, switch: bool) -> list[float]:
        command = self.options.optimized if switch else self.options.baseline
        done = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise Failed(f"`{command}` ended with {done.returncode}:\n{done.stdout[-2000:]}")
        found = self.pattern.findall(done.stdout)
        if not found:
            raise WrongUse(f"`{command}`: nothing in its output matches {self.options.latency}:\n{done.stdout[-2000:]}")
        return [float(text) * self.factor for text in found]

    def kernels(self) -> list[dict[str, float]] | None:
        return None


# --- judging -----------------------------------------------------------------------------------------------------


def judge(
    options: argparse.Namespace,
    sides: Any,
    same: tuple[bool | None, str],
    blocks: dict[bool, list[list[float]]],
    kernels: list[dict[str, float]] | None,
) -> dict[str, Any]:
    """Outcome, intervals, checklist and next steps from the times of all blocks."""
    means = {switch: [statistics.fmean(b) for b in blocks[switch]] for switch in blocks}
    # One unit is off on on off: its difference is free of linear drift. Units, not steps, are replicates.
    gains = []
    for k in range(0, options.blocks // 2, 2):
        off = statistics.fmean(means[False][k : k + 2])
        gains.append(100.0 * (off - statistics.fmean(means[True][k : k + 2])) / off)
    gain = interval(gains, "%")
    value, low, high = figures(gain)
    tails = {switch: tail(blocks[switch]) for switch in blocks}
    checklist = make_checklist(gain, tails, same, kernels)
    if same[0] is False:
        outcome, reason = "failed", f"outputs are not the same: {same[1]}"
    elif gain["low"] > 0:
        outcome, reason = "improved", "the whole interval is above 0"
    elif gain["high"] < 0:
        outcome, reason = "degraded", "the whole interval is below 0"
    else:
        outcome, reason = "no_significant_difference", "the interval contains 0"
    four = [point for point in checklist if point["counts"]]
    met = [point["id"] for point in four if point["answer"] == "yes"]
    return {
        "title": SETTINGS["title"],
        "plan_hash": SETTINGS["plan_hash"],
        "device": sides.device,
        "provenance": "measured",
        "outcome": outcome,
        "reason": f"measured gain {value:+.2f} % [{low:+.2f}, {high:+.2f}] from {len(gains)} units: {reason}",
        "baseline": {"step": interval(means[False], "us"), "p50": tails[False][0], "p99": tails[False][1]},
        "optimized": {"step": interval(means[True], "us"), "p50": tails[True][0], "p99": tails[True][1]},
        "delta": {"step": gain},
        "modelled": SETTINGS["modelled"],
        "success": len(met) >= 2,
        "checklist": checklist,
        "next": next_steps(outcome, checklist),
        "blocks": {"baseline": means[False], "optimized": means[True], "gains": gains},
        "command": " ".join(shlex.quote(a) for a in sys.argv),
    }


def interval(values: list[float], unit: str) -> dict[str, Any]:
    """Mean with its 95 % t interval."""
    mean = statistics.fmean(values)
    n = len(values)
    t = T95[n - 2] if n - 2 < len(T95) else 1.96 + 2.5 / (n - 1)
    half = t * statistics.stdev(values) / math.sqrt(n)
    return {"value": mean, "unit": unit, "low": mean - half, "high": mean + half, "n": n, "provenance": "measured"}


def tail(blocks: list[list[float]]) -> tuple[float, float]:
    """Median and 99th percentile of all steps."""
    times = sorted(t for block in blocks for t in block)
    return statistics.median(times), times[min(len(times) - 1, math.ceil(0.99 * len(times)) - 1)]


def make_checklist(
    gain: dict[str, Any],
    tails: dict[bool, tuple[float, float]],
    same: tuple[bool | None, str],
    kernels: list[dict[str, float]] | None,
) -> list[dict[str, Any]]:
    """The five points; those that need kernel times are `unknown` without profiles."""
    unknown = "needs kernel times: --profile, or --kernels-baseline and --kernels-optimized"
    points: list[dict[str, Any]] = []

    def point(name: str, question: str, answer: str, detail: str, counts: bool = True) -> None:
        points.append({"id": name, "question": question, "answer": answer, "detail": detail, "counts": counts})

    targets, others, notes = kernel_changes(kernels) if kernels else ({}, {}, [])
    if targets:
        before, after = (sum(v[side] for v in targets.values()) for side in (0, 1))
        words = ", ".join(f"{n} {v[0]:.2f} -> {v[1]:.2f} us" for n, v in sorted(targets.items()))
        point("target_faster", "Are the target kernels faster?", "yes" if after < before else "no", words)
    else:
        point(
            "target_faster",
            "Are the target kernels faster?",
            "unknown",
            "no kernel of the targets' types in the profiles" if kernels else unknown,
        )
    shorter = "yes" if gain["low"] > 0 else "no"
    point(
        "critical_path",
        "Is the critical path (the step) shorter?",
        shorter,
        "step {:+.2f} % [{:+.2f}, {:+.2f}]".format(gain["value"], gain["low"], gain["high"]),
    )
    if others:
        slow = {n: v for n, v in others.items() if v[1] > v[0] * (1 + STABLE_PERCENT / 100)}
        words = ", ".join(f"{n} {v[0]:.2f} -> {v[1]:.2f} us" for n, v in sorted(slow.items()))
        point(
            "window_stable",
            "Are the other kernels stable?",
            "no" if slow else "yes",
            words or f"no kernel type is slower by more than {STABLE_PERCENT:g} %",
        )
    else:
        point("window_stable", "Are the other kernels stable?", "unknown", unknown)
    (p50, p99), (q50, q99) = tails[False], tails[True]
    longer = q99 > p99 * (1 + STABLE_PERCENT / 100) and q99 / q50 > p99 / p50 * (1 + STABLE_PERCENT / 100)
    point(
        "no_new_tail",
        "Is there no new long tail?",
        "no" if longer else "yes",
        f"p99 / p50 of the steps: {p99:.1f} / {p50:.1f} -> {q99:.1f} / {q50:.1f} us",
        counts=False,
    )
    point("same_numbers", "Are the outputs the same?", {True: "yes", False: "no", None: "unknown"}[same[0]], same[1])
    for note in notes:
        print("note: " + note, file=sys.stderr)
    return points


def kernel_changes(kernels: list[dict[str, float]]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """(targets, others, notes): operator type -> (baseline, optimised) mean time per kernel, us."""
    before, after = kernels
    wanted = [plain(t["op"]) for t in SETTINGS["targets"]]
    targets: dict[str, Any] = {}
    others: dict[str, Any] = {}
    notes = []
    for name in sorted(set(before) & set(after)):
        place = targets if any(plain(name).startswith(w) for w in wanted if w) else others
        place[name] = (before[name], after[name])
    for name in sorted(set(before) ^ set(after)):
        notes.append("{} is only in the {} profile".format(name, "baseline" if name in before else "optimised"))
    return targets, others, notes


def read_kernels(path: str) -> dict[str, float]:
    """Operator type -> mean duration, us, of a kernel_details.csv."""
    times: dict[str, list[float]] = {}
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        columns = {plain(name): name for name in reader.fieldnames or []}
        kind, duration = columns.get("type"), columns.get("durationus") or columns.get("duration")
        if not (kind and duration):
            raise WrongUse(f"{path}: no columns Type and Duration(us) in {reader.fieldnames}")
        for row in reader:
            try:
                name, value = row[kind].strip(), float(row[duration])
            except (TypeError, ValueError, AttributeError):
                continue  # a truncated last row, or a kernel without a duration
            times.setdefault(name, []).append(value)
    return {name: statistics.fmean(values) for name, values in times.items()}


def next_steps(outcome: str, checklist: list[dict[str, Any]]) -> list[str]:
    """The adjustment that each failure signal asks for."""
    answers = {point["id"]: point["answer"] for point in checklist}
    if outcome == "failed":
        return ["Do not use the change: find out first why the outputs differ."]
    steps = []
    if answers["window_stable"] == "no":
        steps.append(
            "Other kernels are slower: the copy competes for bandwidth. Use a smaller max_size (50 % -> 30 % -> 10 %)."
        )
    if answers["target_faster"] == "yes" and answers["critical_path"] == "no":
        steps.append(
            "The targets are faster, the step is not: the wait only moved. Move the dependency earlier or later."
        )
    if answers["target_faster"] == "no" and answers["window_stable"] == "yes":
        steps.append(
            "The targets are not faster: the copy comes too late or is pushed out. Move the dependency, or give up."
        )
    if answers["no_new_tail"] == "no":
        steps.append("There is a new long tail: change the dependency, or give this position up.")
    if outcome == "improved" and answers["window_stable"] != "no":
        steps.append("It pays: increase max_size (50 % -> 70 % -> 100 %) and measure again.")
    return steps or ["No significant difference: keep the switch off, or measure more blocks (--blocks)."]


def render(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = [
        result["title"] or "baseline against optimised",
        "device: {}".format(result["device"]),
        "",
        "baseline   {:10.1f} us per step  [{:.1f}, {:.1f}]".format(*figures(result["baseline"]["step"])),
        "optimised  {:10.1f} us per step  [{:.1f}, {:.1f}]".format(*figures(result["optimized"]["step"])),
        "gain       {:+10.2f} %            [{:+.2f}, {:+.2f}]  (measured, 95 % interval, {} units of 4 blocks)".format(
            *figures(result["delta"]["step"]), result["delta"]["step"]["n"]
        ),
    ]
    if result["modelled"]:
        lines.append(
            "forecast   {:+10.2f} %            [{:+.2f}, {:+.2f}]  (modelled)".format(*figures(result["modelled"]))
        )
    lines += ["", "outcome: {}. {}".format(result["outcome"].replace("_", " "), result["reason"]), ""]
    marks = {"yes": "[x]", "no": "[ ]", "unknown": "[?]"}
    lines += ["{} {} {}".format(marks[p["answer"]], p["question"], p["detail"]) for p in result["checklist"]]
    enough = "yes" if result["success"] else "no"
    lines += [f"at least two of the four points: {enough}", ""]
    return "\n".join(lines + [f"next: {step}" for step in result["next"]])


# --- small helpers -----------------------------------------------------------------------------------------------


def figures(value: dict[str, Any]) -> tuple[float, float, float]:
    return value["value"], value["low"], value["high"]


def plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def tensors(value: Any) -> list[Any]:
    """All tensors in nested tuples, lists and mappings, in order."""
    if hasattr(value, "detach"):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (tuple, list)):
        return []
    return [t for part in value for t in tensors(part)]


def load_function(text: str) -> Callable[..., Any]:
    """`FILE.py:name` or `package.module:name` -> the function."""
    place, _, name = text.rpartition(":")
    if not place:
        raise WrongUse("--build must be FILE.py:function or package.module:function")
    if place.endswith(".py"):
        if not os.path.isfile(place):
            raise WrongUse(f"no such file: {place}")
        sys.path.insert(0, os.path.dirname(os.path.abspath(place)))
        spec = importlib.util.spec_from_file_location("model_to_compare", place)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["model_to_compare"] = module
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise WrongUse(f"cannot import {place}: {error}") from None
    if not callable(getattr(module, name, None)):
        raise WrongUse(f"{place} has no function {name}")
    return getattr(module, name)


if __name__ == "__main__":
    sys.exit(main())
