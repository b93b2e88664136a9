"""What rewritten files call: functions of ours, or copies of them written into files of other trees.

The behaviour of the copies is that of `models.prefetch` and `models.superkernel`. Of some there are two: npugraph_ex
needs a side stream for prefetches, and has scopes of its own.
"""

_MODULES = {
    "check_prefetch": "models.prefetch",
    "join_prefetch": "models.prefetch",
    "npu_prefetch": "models.prefetch",
    "check_superkernel": "models.superkernel",
    "superkernel_scope": "models.superkernel",
}
_TEXTS = {
    "npu_prefetch": '''\
def npu_prefetch(enabled, weight, dependency, max_size, offset=0):
    """Copy `max_size` bytes of `weight`, from `offset`, into L2 once `dependency` exists."""
    if enabled:
        torch.ops.npu.npu_prefetch(weight, dependency, max_size, offset)
''',
    "check_prefetch": '''\
def check_prefetch(config):
    """Refuse modes without prefetch: a graph mode needs multi-stream, eager is for testing."""
    if not getattr(config, "enable_prefetch", False):
        return
    exe_mode = getattr(config, "exe_mode", "eager")
    if exe_mode not in ("eager", "ge_graph", "npugraph_ex"):
        raise ValueError(f"enable_prefetch does not work in exe_mode {exe_mode}")
    if exe_mode != "eager" and not getattr(config, "enable_multi_stream", 0):
        raise ValueError(f"enable_prefetch in exe_mode {exe_mode} needs enable_multi_stream")
    if exe_mode == "npugraph_ex":
        raise ValueError("enable_prefetch in exe_mode npugraph_ex needs source that was transformed for it")
''',
    "superkernel_scope": '''\
class superkernel_scope:
    """Compile the kernels launched inside into one SuperKernel: what torchair.scope.super_kernel does, traceable."""

    def __init__(self, enabled, scope, options=""):
        self.enabled, self.scope, self.options = enabled, scope, options

    def __enter__(self):
        if self.enabled:
            names = ["_super_kernel_scope", "_super_kernel_options"]
            torch.ops.air.scope_enter(names, [self.scope, self.options])

    def __exit__(self, *error):
        if self.enabled:
            torch.ops.air.scope_exit()
''',
    "check_superkernel": '''\
def check_superkernel(config):
    """Refuse modes without SuperKernel."""
    if not getattr(config, "enable_superkernel", False):
        return
    exe_mode = getattr(config, "exe_mode", "eager")
    if exe_mode != "ge_graph":
        raise ValueError(f"enable_superkernel does not work in exe_mode {exe_mode}")
''',
}
_NPUGRAPH_EX = {
    "npu_prefetch": '''\
_prefetch_stream = None  # of npugraph_ex; in other modes the runtime owns it


def npu_prefetch(enabled, weight, dependency, max_size, offset=0):
    """Copy `max_size` bytes of `weight`, from `offset`, into L2 once `dependency` exists."""
    if not enabled:
        return
    if _prefetch_stream is None:
        torch.ops.npu.npu_prefetch(weight, dependency, max_size, offset)
        return
    ready = torch.npu.Event()
    ready.record(torch.npu.current_stream())
    ready.wait(_prefetch_stream)
    with torch.npu.stream(_prefetch_stream):
        torch.ops.npu.npu_prefetch(weight, dependency, max_size, offset)
''',
    "check_prefetch": '''\
def check_prefetch(config, joined=False):
    """Refuse modes without prefetch: a graph mode needs multi-stream, eager is for testing."""
    global _prefetch_stream
    if not getattr(config, "enable_prefetch", False):
        return
    exe_mode = getattr(config, "exe_mode", "eager")
    if exe_mode not in ("eager", "ge_graph", "npugraph_ex"):
        raise ValueError(f"enable_prefetch does not work in exe_mode {exe_mode}")
    if exe_mode != "eager" and not getattr(config, "enable_multi_stream", 0):
        raise ValueError(f"enable_prefetch in exe_mode {exe_mode} needs enable_multi_stream")
    if exe_mode == "npugraph_ex" and not joined:
        raise ValueError("enable_prefetch in exe_mode npugraph_ex needs source that was transformed for it")
    npu = getattr(torch, "npu", None)
    _prefetch_stream = npu.Stream() if exe_mode == "npugraph_ex" and npu is not None else None
''',
    "join_prefetch": '''\
def join_prefetch(enabled):
    """Wait for the prefetch stream at the end of the step."""
    if enabled and _prefetch_stream is not None:
        done = torch.npu.Event()
        done.record(_prefetch_stream)
        done.wait(torch.npu.current_stream())
''',
    "superkernel_scope": '''\
class superkernel_scope:
    """Compile the kernels launched inside into one SuperKernel; npugraph_ex takes options when it compiles."""

    def __init__(self, enabled, scope, options=""):
        self.enabled, self.scope = enabled, scope

    def __enter__(self):
        if self.enabled:
            torch.npu.super_kernel_scope_begin(self.scope)

    def __exit__(self, *error):
        if self.enabled:
            torch.npu.super_kernel_scope_end(self.scope)
''',
    "check_superkernel": '''\
def check_superkernel(config, allow_npugraph_ex=False):
    """Refuse modes without SuperKernel."""
    if not getattr(config, "enable_superkernel", False):
        return
    exe_mode = getattr(config, "exe_mode", "eager")
    if exe_mode != "ge_graph" and not (allow_npugraph_ex and exe_mode == "npugraph_ex"):
        raise ValueError(f"enable_superkernel does not work in exe_mode {exe_mode}")
''',
}


def module_of(name: str) -> str:
    """The module of ours that has the function."""
    return _MODULES[name]


def text_of(name: str, exe_mode: str) -> str:
    """The copy for files of other trees."""
    return (_NPUGRAPH_EX.get(name) if exe_mode == "npugraph_ex" else None) or _TEXTS[name]
