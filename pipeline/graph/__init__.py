"""The graph rung: the decode step lowered by the real torch_npu / torchair front end, checked against the plan.

The front end is Python (dynamo, AOT, FX passes, GE converters). It needs neither an NPU nor CANN, but it aborts or
crashes the process when something is wrong, so it runs in a supervised worker. What CANN does with the graph
afterwards, whether it has the kernels, and how long anything takes is not known here: every result says so.

`rung.check_graph` is the entry; `fetch` puts the front end into a folder of its own.
"""
