"""From npugraph_ex's FX nodes to plain data: scopes and streams become attributes of the nodes inside."""

from types import SimpleNamespace

from pipeline.graph.fx_reader import read_fx


class Op:
    """A target with a schema, as torch's operators have."""

    _schema = None

    def __init__(self, name):
        self.name = name

    def __str__(self):
        return self.name


def fx(name, target, *args, op="call_function", **kwargs):
    inputs = [a for a in (*args, *kwargs.values()) if isinstance(a, SimpleNamespace)]
    return SimpleNamespace(name=name, op=op, target=Op(target), args=args, kwargs=kwargs, all_input_nodes=inputs)


W = fx("w", "w", op="placeholder")
X = fx("x", "x", op="placeholder")
Y = fx("y", "aten.mm.default", X, W)
ARGUMENTS = [("m.weight", ("m.weight",)), ("L['x']", ())]


def read(*nodes):
    return read_fx((W, X, *nodes), ARGUMENTS)


def test_placeholders_take_the_arguments_in_order():
    graph = read(Y)
    assert graph.by_name["w"].aliases == ("m.weight",)
    assert graph.by_name["x"].argument == "L['x']"
    assert graph.by_name["y"].inputs == ("x", "w")


def test_a_prefetch_reads_its_weight_and_waits_for_its_dependency():
    positional = fx("p", "npu.npu_prefetch.default", W, Y, 100)
    by_name = fx("q", "npu.npu_prefetch.default", W, dependency=Y, max_size=100, offset=8)
    graph = read(Y, positional, by_name)
    assert (graph.by_name["p"].inputs, graph.by_name["p"].controls) == (("w",), ("y",))
    assert dict(graph.by_name["p"].attrs) == {"max_size": 100, "offset": 0}
    assert dict(graph.by_name["q"].attrs) == {"max_size": 100, "offset": 8}
    assert graph.prefetches == (graph.by_name["p"], graph.by_name["q"])


def test_marks_are_left_out_and_say_where_they_were():
    graph = read(Y, fx("k", "npu_recipes.mark.default", Y, "model.o_proj", "output"))
    assert "k" not in graph.by_name
    (mark,) = graph.marks
    assert (mark.module, mark.port, mark.node, mark.after) == ("model.o_proj", "output", "y", "y")


def test_streams_nest_and_the_default_stream_is_the_main_one():
    def enter(name, stream):
        return fx(name, "npugraph_ex.scope_enter.default", ["_user_stream_label", "_user_stream_id"], ["s", stream])

    exits = [fx(f"x{i}", "npugraph_ex.scope_exit.default") for i in range(2)]
    inner, outer, back = (fx(n, "aten.add.default", X) for n in ("inner", "outer", "back"))
    graph = read(enter("e1", "41"), enter("e2", "0"), inner, exits[0], outer, exits[1], back)
    assert [graph.by_name[n].attrs.get("stream") for n in ("inner", "outer", "back")] == [None, "41", None]


def test_core_limits_are_scopes_too():
    enter = fx("e", "npugraph_ex.scope_enter.default", ["_op_aicore_num", "_op_vectorcore_num"], ["8", "16"])
    graph = read(enter, Y, fx("e2", "npugraph_ex.scope_exit.default"))
    assert dict(graph.by_name["y"].attrs) == {"aic": "8", "aiv": "16"}


def test_events_belong_to_their_stream():
    graph = read(
        fx("r", "npugraph_ex.tagged_event_record.default", "e", True),
        fx("w1", "npugraph_ex.tagged_event_wait_on_stream.default", "e", "41", "0", "20", True),
        fx("w2", "npugraph_ex.tagged_event_wait_on_stream.default", "e", "0", "0", "20", True),
    )
    assert dict(graph.by_name["r"].attrs) == {"record": "e"}
    assert dict(graph.by_name["w1"].attrs) == {"wait": "e", "stream": "41"}
    assert dict(graph.by_name["w2"].attrs) == {"wait": "e"}


def test_superkernel_scopes_end_by_name_also_when_they_overlap():
    def scope(what, label):
        return fx(f"{what}{label}", f"npu.super_kernel_scope_{what}.default", label)

    nodes = [fx(f"n{i}", "aten.add.default", X) for i in range(4)]
    graph = read(
        scope("begin", "a"),
        nodes[0],
        scope("begin", "b"),
        nodes[1],
        scope("end", "a"),
        nodes[2],
        scope("end", "b"),
        nodes[3],
    )
    assert [graph.by_name[f"n{i}"].attrs.get("scope") for i in range(4)] == ["a", "b", "b", None]
