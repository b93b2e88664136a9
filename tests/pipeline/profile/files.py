"""Small profiler files with the quirks of real ones."""

from pathlib import Path

# Columns of a Level1 table with PipeUtilization, in the file's order.
HEADER = (
    "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),"
    "Wait Time(us),Block Dim,Mix Block Dim,HF32 Eligible,Input Shapes,Input Data Types,Input Formats,Output Shapes,"
    "Output Data Types,Output Formats,Context ID,aicore_time(us),aic_total_cycles,aic_mac_time(us),aic_mac_ratio,"
    "aic_scalar_time(us),aic_scalar_ratio,aic_mte1_time(us),aic_mte1_ratio,aic_mte2_time(us),aic_mte2_ratio,"
    "aic_fixpipe_time(us),aic_fixpipe_ratio,aic_icache_miss_rate,aiv_time(us),aiv_total_cycles,aiv_vec_time(us),"
    "aiv_vec_ratio,aiv_scalar_time(us),aiv_scalar_ratio,aiv_mte2_time(us),aiv_mte2_ratio,aiv_mte3_time(us),"
    "aiv_mte3_ratio,aiv_icache_miss_rate,cube_utilization(%)"
)
COLUMNS = HEADER.split(",")
LEVEL0 = ["Name", "Type", "Accelerator Core", "Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Dim"]
MATMUL = {
    "Step Id": "7",
    "Device_id": "0",
    "Model ID": "4294967295",
    "Task ID": "11",
    "Stream ID": "2",
    "Name": "aclnnMatmul_MatMulV2",
    "Type": "MatMulV2",
    "OP State": "dynamic",
    "Accelerator Core": "AI_CORE",
    "Start Time(us)": "1736413971558972.912\t",
    "Duration(us)": "5.44",
    "Wait Time(us)": "0.52",
    "Block Dim": "24",
    "Mix Block Dim": "0",
    "HF32 Eligible": "NO",
    "Input Shapes": '"""1,1024;64,192,16,16"""',
    "Input Data Types": "FLOAT16;FLOAT16",
    "Input Formats": "ND;FRACTAL_NZ",
    "Output Shapes": '"""1,3072"""',
    "Output Data Types": "FLOAT16",
    "Output Formats": "ND",
    "Context ID": "N/A",
    "aicore_time(us)": "4.6",
    "aic_mac_ratio": "0.122",
    "aic_mte2_ratio": "0.779",
    "cube_utilization(%)": "80.8",
}


def renamed(names: dict[str, str]) -> list[str]:
    """The columns with other names."""
    return [names.get(column, column) for column in COLUMNS]


# Names that msprof gives in op_summary.
SUMMARY = renamed(
    {
        "Name": "Op Name",
        "Type": "OP Type",
        "Accelerator Core": "Task Type",
        "Start Time(us)": "Task Start Time(us)",
        "Duration(us)": "Task Duration(us)",
        "Wait Time(us)": "Task Wait Time(us)",
    }
)


def row(columns: list[str] | None = None, **cells: str) -> str:
    """One line of a table, cells as they stand in the file; `start`, `type`, ... stand for the long names."""
    names = {"start": "Start Time(us)", "duration": "Duration(us)", "step": "Step Id", "device": "Device_id"}
    names |= {"stream": "Stream ID", "name": "Name", "type": "Type", "core": "Accelerator Core"}
    names |= {"shapes": "Input Shapes", "dtypes": "Input Data Types", "formats": "Input Formats"}
    names |= {"out": "Output Shapes", "out_dtypes": "Output Data Types", "mte2": "aic_mte2_ratio"}
    values = MATMUL | {names[key]: cell for key, cell in cells.items()}
    return ",".join(values.get(column, "0.0") for column in columns or COLUMNS)


def write(path: Path, *rows: str, columns: list[str] | None = None, end: str = "\n") -> Path:
    """A table of these rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(end.join([",".join(columns or COLUMNS), *rows, ""]).encode())
    return path
