"""Sentences of an analysis, English and Chinese."""

from collections.abc import Sequence

from pipeline.analysis.windows import NoWindow
from pipeline.sizes_text import approximate_size

# Codes of `roofline` -> why a kernel is in its class.
REASONS: dict[str, dict[str, str]] = {
    "bytes": {"en": "bytes / bandwidth exceeds FLOPs / peak", "zh": "字节数 / 带宽大于 FLOPs / 算力峰值"},
    "flops": {"en": "FLOPs / peak exceeds bytes / bandwidth", "zh": "FLOPs / 算力峰值大于字节数 / 带宽"},
    "far_from_peak": {
        "en": "bytes / bandwidth exceeds FLOPs / peak, but far from the HBM peak: few cores, shared HBM, or bad tiling",
        "zh": "字节数 / 带宽大于 FLOPs / 算力峰值，但离 HBM 峰值尚远：用核少、带宽被共享或 tiling 不佳",
    },
    "above_peak": {
        "en": "more than the HBM peak: the bytes came from L2, or not all were read (experts without tokens)",
        "zh": "超过 HBM 峰值：数据来自 L2，或并未全部读取（如没有 token 的专家）",
    },
    "load_pipe": {"en": "the load pipe is busiest, at little bandwidth", "zh": "搬运流水最忙，但带宽不高"},
    "pipe_only": {"en": "by the busiest pipe; shapes do not decide", "zh": "仅按最忙的流水判断；shape 不足以判断"},
    "balanced": {
        "en": "load pipe and Cube are both busy, and shapes do not decide",
        "zh": "搬运流水与 Cube 都忙，而 shape 不足以判断",
    },
    "launch": {"en": "short, and its cores are busy for a part of it", "zh": "耗时短，且核只在其中一部分时间忙"},
    "scalar_pipe": {"en": "the scalar pipe is busiest", "zh": "标量流水最忙"},
    "vector_pipe": {"en": "the vector pipe is busiest", "zh": "向量流水最忙"},
    "link": {"en": "communication; its time holds waiting for other ranks", "zh": "通信；耗时包含等待其他 rank"},
    "ai_cpu": {"en": "runs on the AI CPU", "zh": "在 AI CPU 上运行"},
    "no_metrics": {"en": "no ratios, and shapes do not decide", "zh": "没有流水占比，shape 也不足以判断"},
}
# The same in the width of a terminal's column; what is the rule needs no word.
SHORT: dict[str, str] = {
    "bytes": "",
    "far_from_peak": "far from the peak",
    "above_peak": "from L2, or not all read",
    "load_pipe": "by the load pipe",
    "pipe_only": "by the load pipe, no bytes",
}
LIMITED: dict[str, dict[str, str]] = {
    "coefficient": {"en": "coefficient", "zh": "系数"},
    "window": {"en": "window", "zh": "窗口"},
    "l2": {"en": "L2", "zh": "L2"},
    "other_copies": {"en": "other copies", "zh": "其他拷贝"},
}


def no_window_words(window: NoWindow, passed: Sequence[str], wanted: float) -> dict[str, str]:
    """Why there is no safe window."""
    names = ", ".join(dict.fromkeys(passed))
    best, want = approximate_size(window.best), approximate_size(wanted)
    return {
        "first": {"en": "nothing runs before it in the step", "zh": "该步内之前没有算子"},
        "link_only": {
            "en": f"only communication before it in reach ({window.link_us:.1f} us), whose output is no dependency",
            "zh": f"可及范围内的前序只有通信算子（{window.link_us:.1f} us），不能作为依赖",
        },
        "too_short": {
            "en": f"all windows in reach are too short: {best} of {want} would fit",
            "zh": f"可及范围内的窗口都太短：{want} 中只放得下 {best}",
        },
        "bandwidth": {
            "en": f"kernels before it take the bandwidth ({names}): {best} of {want} would fit",
            "zh": f"前序算子占满带宽（{names}）：{want} 中只放得下 {best}",
        },
        "l2": {
            "en": f"what runs between dependency and target pushes the copy of {want} out of L2",
            "zh": f"依赖与目标之间的数据会把 {want} 的拷贝挤出 L2",
        },
        "resident": {
            "en": "read faster than HBM can: it is in L2 already, prefetched or left from before",
            "zh": "读取速度已超过 HBM：权重已在 L2 中（已被预取或此前留存）",
        },
        "shared": {
            "en": "copies of other targets take its window: prefetch it instead of one of them, or not at all",
            "zh": "其窗口已被其他目标的拷贝占用：只能与其中之一二选一，或放弃",
        },
        "small": {
            "en": f"{want} are wanted, and so little is read faster than a prefetch is issued",
            "zh": f"所需大小只有 {want}，直接读取比下发一次 prefetch 更快",
        },
        "minor": {
            "en": "larger targets come first, and no more are planned together",
            "zh": "更大的目标优先，同时规划的目标数已达上限",
        },
    }[window.code]
