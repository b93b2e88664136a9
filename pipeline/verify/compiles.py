"""Rung *compiles*: the rewritten source parses, imports, builds, and runs a prefill and a decode step."""

from collections.abc import Mapping

from models.loading import LoadedModel
from pipeline.record import Rung
from pipeline.verify.building import Build, built, explain, one_thread


def check_compiles(loaded: LoadedModel, build: Build, sources: Mapping[str, str] | None = None) -> Rung:
    """Check that the transformed model can be built and run at all.

    Args:
        loaded: the tiny model.
        build: builds the transformed model, see `building`.
        sources: path -> text of each rewritten file; None for `wrap`.
    """
    for path, text in (sources or {}).items():
        try:
            compile(text, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            return Rung("failed", f"the rewritten source does not parse: {explain(error)}")
    stage = "build"
    try:
        with one_thread(), built(build, True) as module:
            stage = "run"
            loaded.run(module, decode_steps=1)
    except Exception as error:  # whatever a rewritten file raises is a finding, not a crash of ours
        return Rung("failed", f"the transformed model does not {stage}: {explain(error)}")
    files = f"{len(sources)} rewritten file(s) parse and import; " if sources else ""
    return Rung(
        "passed",
        f"{files}the transformed model runs a prefill and a decode step",
        f"{f'{len(sources)} 个改写后的文件可解析、可导入;' if sources else ''}改造后的模型可执行 prefill 与一步 decode",
    )
