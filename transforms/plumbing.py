"""What a file needs around its prefetch statements: switches and links in `__init__`, the check, the helper."""

import ast
import inspect
from collections.abc import Iterable, Mapping

from transforms import layout
from transforms.configuration import configured, configured_for
from transforms.helpers import module_of, text_of
from transforms.levers import PREFETCH, SUPERKERNEL, Lever
from transforms.phase import NoPhase, phase_condition
from transforms.reaching import Link
from transforms.recording import Recording
from transforms.rewriting import FunctionRewrite
from transforms.scoping import LayerIndex, ScopeStatement
from transforms.source_file import SourceFile
from transforms.statements import Statement
from transforms.telling import Mark, NotPlaceable, attribute

# The check of a lever, and what it is told in source that was written for npugraph_ex.
_CHECKS = {PREFETCH: ("check_prefetch", "joined=True"), SUPERKERNEL: ("check_superkernel", "allow_npugraph_ex=True")}
_LINK_COMMENT = "a link, not a submodule"


class FileRewrite:
    """Edits of the functions of one file, and its new text.

    Args:
        recording: the recorded run, with the file.
        exe_mode: of the plan. npugraph_ex needs statements that other modes do not.
    """

    def __init__(self, recording: Recording, exe_mode: str) -> None:
        self.recording = recording
        self.exe_mode = exe_mode
        self._helpers: set[str] = set()
        self.source: SourceFile = recording.source
        self._functions: dict[int, FunctionRewrite] = {}
        self._to_next: dict[str, list[str]] = {}  # class -> what it sets in the loop over neighbouring layers

    def prefetch(self, statements: list[Statement]) -> None:
        """Write statements that hang on the same tensor at the same place, and what they need in `__init__`s.

        Raises:
            NotPlaceable: the source does not allow it.
        """
        spot = statements[0].spot
        function = self.function(spot.function, spot.site.line if spot.site else None)
        if any(statement.callers for statement in statements):
            function.accept(PREFETCH.passed)
        function.prefetch(statements)
        self._helpers.add("npu_prefetch")
        for statement in statements:
            self._plumb(statement)

    def open_scope(self, statement: ScopeStatement) -> None:
        """Start a scope, and write what it needs in `__init__`s.

        Raises:
            NotPlaceable: likewise.
        """
        assert statement.first.site is not None
        function = self.function(statement.function, statement.first.site.line)
        self._helpers.add("superkernel_scope")
        if not function.open_scope(statement):
            return
        if statement.guard.kind == "caller":
            function.accept(SUPERKERNEL.passed)
            for owner in sorted(statement.owners):
                self._pass_switch(owner, statement.guard.test, SUPERKERNEL)
        else:
            self._switch(statement.function, statement.owners, SUPERKERNEL)
        if statement.mark:
            init = self._configured_init(statement.function, statement.owners)[0]
            init.after_super(f"self.{statement.mark.name} = False")
            self._set_mark(statement.mark)
        if statement.index and not statement.index.is_set:
            init = self._configured_init(statement.function, statement.owners)[0]
            init.after_super(f"self.{statement.index.name} = None")
            self._set_index(statement.index)

    def close_scope(self, statement: ScopeStatement) -> None:
        """End it.

        Raises:
            NotPlaceable: likewise.
        """
        assert statement.last.site is not None
        self.function(statement.function, statement.last.site.line).close_scope(statement)

    def function(self, name: str, line: int | None = None) -> FunctionRewrite:
        definition = self.source.function(name, line)
        if definition is None:
            raise NotPlaceable(f"{name} is not in {self.source.path.name}")
        if definition.lineno not in self._functions:
            self._functions[definition.lineno] = FunctionRewrite(self.source.parsed(definition), self.source.width)
        return self._functions[definition.lineno]

    def check(self, lever: Lever) -> None:
        """Let the model class (the owner of the decoder layers) refuse modes in which the lever does not work.

        Raises:
            NotPlaceable: it has no `__init__` that gets the configuration.
        """
        cls, config = configured(self.recording, self.recording.class_of(self.recording.root))
        init = self.function(f"{cls}.__init__")
        name, allowed = _CHECKS[lever]
        arguments = [config, *([allowed] if self.exe_mode == "npugraph_ex" else [])]
        init.after_super(f"{name}({', '.join(arguments)})")
        self._helpers.add(name)

    def join(self) -> None:
        """In npugraph_ex: wait for the prefetch stream at the end of the step.

        Raises:
            NotPlaceable: the model's forward has several returns.
        """
        if self.exe_mode != "npugraph_ex":
            return
        cls = self.recording.class_of(self.recording.root)
        name = inspect.unwrap(cls.forward).__qualname__  # type: ignore[attr-defined]
        forward = self.function(name)
        definition = self.source.function(name)
        assert definition is not None
        try:
            switch = forward.guard(phase_condition(self.recording, name, definition))
        except NoPhase:  # to wait in prefill, too, does no harm
            switch = PREFETCH.switch
        self._switch(name, [self.recording.root], PREFETCH)
        comment = "what is not joined can't be captured"
        forward.step_end(layout.commented(f"join_prefetch({switch})", comment, 8, self.source.width))
        self._helpers.add("join_prefetch")

    def link_layers(self) -> None:
        """Write the loop that sets all links from a layer to the next one."""
        layers = self.recording.layers
        for parent, texts in self._to_next.items():
            head = f"for layer, next_layer in zip(self.{layers}[:-1], self.{layers}[1:], strict=True):"
            if len(texts) > 1:  # one comment for all of them
                texts = ["# links, not submodules", *map(_without_comment, texts)]
            body = layout.indented("\n".join(texts)).rstrip("\n")
            self.function(f"{parent}.__init__").after_assignment([layers], f"{head}\n{body}")

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
        for owner, test in statement.callers:
            self._pass_switch(owner, test, PREFETCH)
        if not statement.callers:
            self._switch(statement.spot.function, statement.owners, PREFETCH)
        needs = [(statement.link.name, "None")] if statement.link else []
        needs += [(statement.mark.name, "False")] if statement.mark else []
        for name, default in needs:
            self._configured_init(statement.spot.function, statement.owners)[0].after_super(f"self.{name} = {default}")
        if statement.link:
            self._set_link(statement.link)
        if statement.mark:
            self._set_mark(statement.mark)

    def _switch(self, function: str, owners: Iterable[str], lever: Lever) -> None:
        init, config = self._configured_init(function, owners)
        if not init.assigns(lever.name):
            init.after_super(f'{lever.switch} = getattr({config}, "{lever.name}", False)')

    def _pass_switch(self, owner: str, test: str, lever: Lever) -> None:
        """Let the function that calls `owner` decide, and pass the decision on."""
        call = self.recording.decode.by_module[owner][0]
        assert call.site is not None and call.owner is not None
        caller = self.function(call.site.function, call.site.line)
        switch = caller.guard(test, lever)
        if switch != lever.passed:
            raise NotPlaceable(f"the name {lever.passed} is in use in {call.site.function}")
        caller.pass_on(call.site, switch)
        self._switch(call.site.function, [call.owner], lever)

    def _configured_init(self, function: str, owners: Iterable[str]) -> tuple[FunctionRewrite, str]:
        """The `__init__` that all instances run, see `configuration`."""
        cls, config = configured_for(self.recording, function, owners)
        return self.function(f"{cls}.__init__"), config

    def _set_mark(self, mark: Mark) -> None:
        text = _only_if(mark.only_if, f"self{attribute(mark.child)}.{mark.name} = True")
        init = self.function(f"{mark.parent}.__init__")
        init.after_assignment([mark.child.partition(".")[0]], text)

    def _set_link(self, link: Link) -> None:
        start, end = ("layer", "next_layer") if link.to_next else ("self", "self")
        indent = 8 + 4 * link.to_next + 4 * bool(link.only_if)
        arguments = [f"{start}{attribute(link.holder)}", f'"{link.name}"', f"{end}{attribute(link.target)}"]
        setter = layout.call("object.__setattr__", arguments, indent, self.source.width)
        text = _only_if(link.only_if, layout.commented(setter, _LINK_COMMENT, indent, self.source.width))
        if link.to_next:
            texts = self._to_next.setdefault(link.parent, [])
            texts += [] if text in texts else [text]
            return
        needed = [link.holder.partition(".")[0], link.target.partition(".")[0]]
        self.function(f"{link.parent}.__init__").after_assignment(needed, text)

    def _set_index(self, index: LayerIndex) -> None:
        """Let the owner of the layers number the instances that open scopes."""
        layers = self.recording.layers
        init = self.function(f"{self.recording.class_of(self.recording.root).__name__}.__init__")
        text = _only_if(index.only_if, f"layer{attribute(index.holder)}.{index.name} = {index.name}")
        loop = f"for {index.name}, layer in enumerate(self.{layers}):\n{layout.indented(text)}".rstrip("\n")
        init.after_assignment([layers], loop)

    def _add_helpers(self, lines: list[str]) -> None:
        wanted = sorted(self._helpers - self.source.top_level_names)
        if not wanted:
            return
        if "join_prefetch" in wanted and "npu_prefetch" not in wanted:
            name = self.source.path.name
            raise NotPlaceable(f"{name} has an npu_prefetch of its own, whose stream for npugraph_ex is not known")
        imports = [node for node in self.source.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        if not imports:
            raise NotPlaceable(f"{self.source.path.name} imports nothing, not even torch")
        end = "\r\n" if lines[0].endswith("\r\n") else "\n"
        if self.recording.python_module.__name__.startswith("models."):
            new = {m: [n for n in wanted if module_of(n) == m] for m in sorted(set(map(module_of, wanted)))}
            self._import_ours(
                lines, imports, {m: f"from {m} import {', '.join(names)}{end}" for m, names in new.items()}
            )
            return
        last = imports[-1].end_lineno or imports[-1].lineno
        blank = next((n for n, line in enumerate(self.source.lines[last:]) if line.strip()), 2)
        texts = [text_of(name, self.exe_mode) for name in sorted(wanted, key=_helper_order)]
        if "torch" not in self.source.top_level_names and any("torch." in helper for helper in texts):
            raise NotPlaceable(f"{self.source.path.name} does not import torch, which prefetch calls need")
        text = "".join(f"\n\n{helper}" for helper in texts) + "\n" * max(0, 2 - blank)
        lines[last - 1] += text.replace("\n", end)

    def _import_ours(
        self, lines: list[str], imports: list[ast.Import | ast.ImportFrom], new: Mapping[str, str]
    ) -> None:
        """In import order, so that isort has nothing to say."""
        own = [n for n in imports if isinstance(n, ast.ImportFrom) and (n.module or "").partition(".")[0] == "models"]
        behind: dict[int, str] = {}
        before_all = ""
        for module, line in new.items():
            earlier = [node for node in own if (node.module or "") < module]
            place = (earlier[-1] if earlier else imports[-1]).end_lineno or 1
            if own and not earlier:
                before_all += line
            else:
                gap = "" if own else ("\r\n" if line.endswith("\r\n") else "\n")
                behind[place] = behind.get(place, gap) + line
        for place, text in behind.items():
            lines[place - 1] += text
        if before_all:
            lines[own[0].lineno - 1] = before_all + lines[own[0].lineno - 1]


def _helper_order(name: str) -> tuple[str, str]:
    """The check of a lever before its call."""
    return module_of(name), "" if name.startswith("check_") else name


def _only_if(condition: str, text: str) -> str:
    return f"if {condition}:\n{layout.indented(text)}".rstrip("\n") if condition else text


def _without_comment(setter: str) -> str:
    """The text of a link without the comment at its end or above it."""
    lines = (line.removesuffix(f"  # {_LINK_COMMENT}") for line in setter.splitlines())
    return "\n".join(line for line in lines if line.strip() != f"# {_LINK_COMMENT}")
