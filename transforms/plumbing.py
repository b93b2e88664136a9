"""What a file needs around its prefetch statements: switches and links in `__init__`, the check, the helper."""

import ast
from collections.abc import Iterable

from transforms import layout
from transforms.placing import Statement
from transforms.reaching import NEXT_LAYER, Link, Mark, NotPlaceable, attribute
from transforms.recording import Recording
from transforms.rewriting import PASSED_SWITCH, FunctionRewrite
from transforms.source_file import SourceFile, parameters

# Written into files of other trees, which can't import ours. The behaviour is that of `models.prefetch`.
_HELPERS = {
    "npu_prefetch": '''\
def npu_prefetch(enabled, weight, dependency, max_size, offset=0):
    """Copy `max_size` bytes of `weight`, from `offset`, into L2 once `dependency` exists."""
    if enabled:
        torch.ops.npu.npu_prefetch(weight, dependency, max_size, offset)
''',
    "check_prefetch": '''\
def check_prefetch(config):
    """Refuse modes without prefetch: a graph mode needs multi-stream, eager is for testing."""
    if not getattr(config, "enable_prefetch", False):
        return
    exe_mode = getattr(config, "exe_mode", "eager")
    if exe_mode not in ("eager", "ge_graph", "npugraph_ex"):
        raise ValueError(f"enable_prefetch does not work in exe_mode {exe_mode}")
    if exe_mode != "eager" and not getattr(config, "enable_multi_stream", 0):
        raise ValueError(f"enable_prefetch in exe_mode {exe_mode} needs enable_multi_stream")
''',
}
_LINK_COMMENT = "a link, not a submodule"


class FileRewrite:
    """Edits of the functions of one file, and its new text.

    Args:
        recording: the recorded run, with the file.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.source: SourceFile = recording.source
        self._functions: dict[int, FunctionRewrite] = {}

    def prefetch(self, statements: list[Statement]) -> None:
        """Write statements that hang on the same tensor at the same place, and what they need in `__init__`s.

        Raises:
            NotPlaceable: the source does not allow it.
        """
        spot = statements[0].spot
        function = self.function(spot.function, spot.site.line if spot.site else None)
        function.prefetch(statements)
        if spot.guard.kind == "caller":
            function.accept(PASSED_SWITCH)
        for statement in statements:
            self._plumb(statement)

    def function(self, name: str, line: int | None = None) -> FunctionRewrite:
        definition = self.source.function(name, line)
        if definition is None:
            raise NotPlaceable(f"{name} is not in {self.source.path.name}")
        if definition.lineno not in self._functions:
            self._functions[definition.lineno] = FunctionRewrite(self.source.parsed(definition), self.source.width)
        return self._functions[definition.lineno]

    def check(self) -> None:
        """Let the model class (the owner of the decoder layers) refuse modes in which prefetch does not work.

        Raises:
            NotPlaceable: it has no `__init__` that gets the configuration.
        """
        init, config = self._configured(self.recording.class_of(self.recording.root))
        init.after_super(f"check_prefetch({config})")

    def text(self) -> str:
        """The file's new text; lines outside the edited functions are not touched."""
        lines = list(self.source.lines)
        changed = {line: f for line, f in self._functions.items() if f.changed}
        for definition in (f for versions in self.source.functions.values() for f in versions):
            if definition.lineno in changed and definition.end_lineno is not None:
                new = changed[definition.lineno].code()
                lines[definition.lineno - 1 : definition.end_lineno] = [new] + [""] * (
                    definition.end_lineno - definition.lineno
                )
        if changed:
            self._add_helpers(lines)
        return "".join(lines)

    def _plumb(self, statement: Statement) -> None:
        if statement.spot.guard.kind == "caller":
            for owner in sorted(statement.owners):
                self._pass_switch(owner, statement.spot.guard.test)
        else:
            self._switch(statement.spot.function, statement.owners)
        needs = [(statement.link.name, "None")] if statement.link else []
        needs += [(statement.mark.name, "False")] if statement.mark else []
        for name, default in needs:
            self._configured_init(statement.spot.function, statement.owners)[0].after_super(f"self.{name} = {default}")
        if statement.link:
            self._set_link(statement.link)
        if statement.mark:
            self._set_mark(statement.mark)

    def _switch(self, function: str, owners: Iterable[str]) -> None:
        init, config = self._configured_init(function, owners)
        if not init.assigns("enable_prefetch"):
            init.after_super(f'self.enable_prefetch = getattr({config}, "enable_prefetch", False)')

    def _pass_switch(self, owner: str, test: str) -> None:
        """Let the function that calls `owner` decide, and pass the decision on."""
        call = self.recording.decode.by_module[owner][0]
        assert call.site is not None and call.owner is not None
        caller = self.function(call.site.function, call.site.line)
        switch = caller.guard(test)
        if switch != PASSED_SWITCH:
            raise NotPlaceable(f"the name {PASSED_SWITCH} is in use in {call.site.function}")
        caller.pass_on(call.site, switch)
        self._switch(call.site.function, [call.owner])

    def _configured_init(self, function: str, owners: Iterable[str]) -> tuple[FunctionRewrite, str]:
        """The `__init__` that all instances run: of the class that defines the function, or of one of its bases."""
        defining = getattr(self.recording.python_module, function.partition(".")[0])
        try:
            return self._configured(defining)
        except NotPlaceable:
            classes = {self.recording.class_of(owner) for owner in owners}
            if len(classes) != 1:
                raise
            return self._configured(classes.pop())

    def _configured(self, cls: type) -> tuple[FunctionRewrite, str]:
        for base in cls.__mro__:
            definition = self.source.function(f"{base.__name__}.__init__") if self.recording.in_file(base) else None
            if definition is None:
                continue
            names = [p.arg for p in parameters(definition)]
            config = next((n for n in names if n == "config"), None) or next(
                (n for n in names if n.endswith("config")), None
            )
            if config is None:
                raise NotPlaceable(f"{base.__name__}.__init__ does not get the config, which holds the switch")
            return self.function(f"{base.__name__}.__init__"), config
        raise NotPlaceable(f"{cls.__name__} has no __init__ in {self.source.path.name}, so it can't get the switch")

    def _set_mark(self, mark: Mark) -> None:
        text = _only_if(mark.only_if, f"self{attribute(mark.child)}.{mark.name} = True")
        init = self.function(f"{mark.parent}.__init__")
        init.after_assignment([mark.child.partition(".")[0]], text)

    def _set_link(self, link: Link) -> None:
        init = self.function(f"{link.parent}.__init__")
        step = 4
        if link.name == NEXT_LAYER:
            layers = self.recording.layers
            holder, target, needed = f"layer{attribute(link.holder)}", NEXT_LAYER, [layers]
            step += 4
        else:
            holder, target = f"self{attribute(link.holder)}", f"self{attribute(link.target)}"
            needed = [link.holder.partition(".")[0], link.target.partition(".")[0]]
        step += 4 if link.only_if else 0
        setter = f'object.__setattr__({holder}, "{link.name}", {target})'
        text = layout.commented(setter, _LINK_COMMENT, step + 4, self.source.width)
        text = _only_if(link.only_if, text)
        if link.name == NEXT_LAYER:
            head = f"for layer, {NEXT_LAYER} in zip(self.{layers}[:-1], self.{layers}[1:], strict=True):"
            text = f"{head}\n{layout.indented(text)}".rstrip("\n")
        init.after_assignment(needed, text)

    def _add_helpers(self, lines: list[str]) -> None:
        wanted = [name for name in ("check_prefetch", "npu_prefetch") if name not in self.source.top_level_names]
        if not wanted:
            return
        imports = [node for node in self.source.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        if not imports:
            raise NotPlaceable(f"{self.source.path.name} imports nothing, not even torch")
        end = "\r\n" if lines[0].endswith("\r\n") else "\n"
        if self.recording.python_module.__name__.startswith("models."):
            self._import_ours(lines, imports, f"from models.prefetch import {', '.join(wanted)}{end}")
            return
        last = imports[-1].end_lineno or imports[-1].lineno
        blank = next((n for n, line in enumerate(self.source.lines[last:]) if line.strip()), 2)
        text = "".join(f"\n\n{_HELPERS[name]}" for name in reversed(wanted)) + "\n" * max(0, 2 - blank)
        lines[last - 1] += text.replace("\n", end)

    def _import_ours(self, lines: list[str], imports: list[ast.Import | ast.ImportFrom], line: str) -> None:
        """In import order, so that isort has nothing to say."""
        own = [n for n in imports if isinstance(n, ast.ImportFrom) and (n.module or "").partition(".")[0] == "models"]
        before = [node for node in own if (node.module or "") < "models.prefetch"]
        if before:
            lines[(before[-1].end_lineno or 1) - 1] += line
        elif own:
            lines[own[0].lineno - 1] = line + lines[own[0].lineno - 1]
        else:
            lines[(imports[-1].end_lineno or 1) - 1] += ("\r\n" if line.endswith("\r\n") else "\n") + line


def _only_if(condition: str, text: str) -> str:
    return f"if {condition}:\n{layout.indented(text)}".rstrip("\n") if condition else text
