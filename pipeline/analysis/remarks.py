"""Warnings of a profile and its analysis in Chinese: what each code means. The message itself has the figures."""

from models.problems import Problem

REMARKS = {
    "one-step": "只有一步可用：耗时是单次测量值，不是中位数；请采集多步",
    "different-steps": "部分步的算子与最常见的序列不同，未参与统计",
    "idle-step": "该步大部分时间没有算子在运行，瓶颈在 host 或其他 rank：prefetch 与 SuperKernel 都无济于事",
    "inconsistent-shapes": "算子的 shape 相互矛盾，其字节数按未知处理；文件可能被改动过",
    "above-peak": "几乎所有权重的读取速度都超过 HBM 峰值：权重已被预取，或 hardware= 与采集设备不符",
    "many-targets": "目标过多，耗时最短的未分析",
    "cannot-classify": "部分 rank 没有 shape 与流水占比，无法分类，未参与分析",
    "ragged-row": "字段数或引号不对的行已跳过",
    "row-without-time": "没有可用开始时间或耗时的行已跳过",
    "start-far-off": "开始时间与其余行相差一天以上的行已跳过",
    "repeated-header": "重复的表头行已跳过",
    "not-a-number": "不是数字的单元格按未知处理",
    "column-twice": "存在同名列，使用第一列",
    "wrong-encoding": "文件不是 UTF-8 编码，已转换",
    "no-kernels": "文件中没有可用的算子，已跳过",
    "unreadable-file": "文件无法读取，已跳过",
    "unreadable-folder": "目录无法读取，已跳过",
    "too-many-folders": "目录过多，其余未搜索",
    "earlier-export": "同一目录中有更新的导出结果，较早的未使用",
    "profiler-info-unreadable": "profiler_info 无法解析，rank 取自名称",
    "another-batch": "MatMul 的行数与 deployment 的 batch 不符：请设置采集时的 batch",
    "mapping-partial": "部分算子只出现在 profile 或模型的一方",
    "replay-off": "重放的基线与实测单步相差超过 5 %",
    "different-ranks": "两次运行比较的是不同的 rank",
    "different-kinds": "两次采集的指标不同，指标本身会影响算子耗时",
    "different-cores": "算子使用的核数不同",
    "different-kernels": "两步的算子不完全相同",
    "baseline-prefetches": "基线中已有 prefetch：两个路径的顺序是否颠倒？",
    "too-few-steps": "步数太少，没有置信区间",
    "drift": "不受访存限制的算子也变化了：两次运行之间存在漂移",
    "trace-damaged": "trace_view.json 被截断或损坏，使用损坏之前的内容",
}


def remark_zh(problem: Problem) -> str:
    """The meaning of a warning, and its message as it was printed, in code quotes."""
    said = f"`{problem.message.replace('`', '')}`"
    meaning = REMARKS.get(problem.code)
    return f"{meaning}（{said}）" if meaning else said
