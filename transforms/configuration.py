"""Which `__init__` gets the configuration that holds the switches."""

from collections.abc import Iterable

from transforms.recording import Recording
from transforms.source_file import parameters
from transforms.telling import NotPlaceable


def configured(recording: Recording, cls: type) -> tuple[str, str]:
    """The class, it or one of its bases, whose `__init__` all instances run, and the parameter with the configuration.

    Raises:
        NotPlaceable: there is none in the file, or it does not get the configuration.
    """
    for base in cls.__mro__:
        init = recording.source.function(f"{base.__name__}.__init__") if recording.in_file(base) else None
        if init is None:
            continue
        names = [p.arg for p in parameters(init)]
        config = next((n for n in names if n == "config"), None) or next(
            (n for n in names if n.endswith("config")), None
        )
        if config is None:
            raise NotPlaceable(f"{base.__name__}.__init__ does not get the config, which holds the switch")
        return base.__name__, config
    raise NotPlaceable(f"{cls.__name__} has no __init__ in {recording.source.path.name}, so it can't get the switch")


def configured_for(recording: Recording, function: str, owners: Iterable[str]) -> tuple[str, str]:
    """The same for a function that some instances run: of the class that defines it, else of theirs.

    Raises:
        NotPlaceable: likewise.
    """
    try:
        return configured(recording, getattr(recording.python_module, function.partition(".")[0]))
    except NotPlaceable:
        classes = {recording.class_of(owner) for owner in owners}
        if len(classes) != 1:
            raise
        return configured(recording, classes.pop())


def lacks_config(recording: Recording, function: str, owners: Iterable[str]) -> str:
    """Why the instances can't hold the switch; "" if they can."""
    try:
        configured_for(recording, function, owners)
    except NotPlaceable as reason:
        return str(reason)
    return ""
