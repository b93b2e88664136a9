"""Hands exactly the grid points that were composed and validated to Hydra's launcher.

Hydra's basic sweeper would build the grid from the command line once more: it can't carry the groups that each
point's recipe selects, turns a deletion `~key` into `~key=null`, composes every point again, and after a failing
batch skips the others. Launchers (basic, joblib, submitit, Ray) are Hydra's own, chosen by `hydra/launcher=`.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf

from pipeline.outputs import write_text
from pipeline.progress import say


def launch(
    app: Any, task: Callable[[Any], Any], grid: Sequence[Sequence[str]], overrides: Sequence[str], directory: Path
) -> Iterator[Any]:
    """Run one job per grid point.

    Args:
        app: from `compose.hydra`.
        task: importable by name, for launchers that run it elsewhere.
        grid: complete overrides of every point.
        overrides: Hydra's own (launcher, sweep directory).
        directory: the sweep directory; gets `multirun.yaml`.

    Yields:
        What the task returned, for every job that came back.

    Raises:
        Exception: the launcher broke.
    """
    config = app.compose_config(config_name="config", overrides=list(overrides), run_mode=RunMode.MULTIRUN)
    callbacks = Callbacks(config)
    callbacks.on_multirun_start(config=config, config_name="config")
    write_text(directory / "multirun.yaml", OmegaConf.to_yaml(config))
    launcher = Plugins.instance().instantiate_launcher(
        config=config,
        hydra_context=HydraContext(config_loader=app.config_loader, callbacks=callbacks),
        task_function=task,
    )
    jobs: Sequence[JobReturn] = launcher.launch([list(point) for point in grid], initial_job_idx=0)
    callbacks.on_multirun_end(config=config, config_name="config")
    for job in jobs:
        if job.status == JobStatus.COMPLETED:
            yield job.return_value
        else:
            # The value of a failed job is its exception; reading it as `return_value` would raise it.
            say(f"a job failed outside its trial: {job._return_value!r}")
