"""The architectures that have an NPU-shaped model, and where it is."""

import importlib
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Architecture:
    """Names in one modeling file.

    Attributes:
        module: Python module that holds all classes of the architecture except leaf layers.
        config_class: its configuration dataclass.
        model_class: the whole model, built from the configuration.
        root: FQN of the module that owns the decoder layer list.
        layers: name of that list below `root`.
        num_layers: configuration field with the number of decoder layers.
    """

    module: str
    config_class: str
    model_class: str
    num_layers: str
    root: str = "model"
    layers: str = "layers"

    def load(self) -> ModuleType:
        """Import the modeling file."""
        return importlib.import_module(self.module)


ARCHITECTURES = {
    "longcat_flash": Architecture(
        "models.longcat_flash", "LongcatFlashConfig", "LongcatFlashForCausalLM", "num_layers"
    ),
    "deepseek_v3": Architecture("models.deepseek_v3", "DeepseekV3Config", "DeepseekV3ForCausalLM", "num_hidden_layers"),
    "qwen3": Architecture("models.qwen3", "Qwen3Config", "Qwen3ForCausalLM", "num_hidden_layers"),
    "qwen3_moe": Architecture("models.qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeForCausalLM", "num_hidden_layers"),
}
