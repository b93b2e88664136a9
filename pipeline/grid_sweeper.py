"""A Hydra sweeper that launches exactly the grid points which were composed and validated beforehand.

Hydra's basic sweeper builds the grid from the command line again: it can't carry the groups that each point's recipe
selects, turns `~key` into `~key=null`, composes every point once more, and stops at the first failing batch.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from pipeline.outputs import write_text


class GridSweeper(Sweeper):
    """Hands `GridSweeper.grid` to the configured launcher, in one batch."""

    grid: ClassVar[Sequence[Sequence[str]]] = ()

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        self.hydra_context = hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from pathlib import Path

        assert self.config is not None and self.launcher is not None
        directory = Path(self.config.hydra.sweep.dir)
        directory.mkdir(parents=True, exist_ok=True)
        write_text(directory / "multirun.yaml", OmegaConf.to_yaml(self.config))
        return [self.launcher.launch([list(point) for point in self.grid], initial_job_idx=0)]


Plugins.instance().register(GridSweeper)
