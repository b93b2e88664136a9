"""The statements of a function's blocks, replaced by what was decided for each, and wrapped in scopes."""

import libcst as cst

from transforms.scope_text import Region, with_contexts, wrapped
from transforms.source_file import ParsedFunction


class Replacement(cst.CSTTransformer):
    """The statements of nested blocks, replaced and wrapped."""

    def __init__(
        self,
        function: ParsedFunction,
        edited: dict[int, tuple[list[cst.BaseStatement], int]],
        regions: list[Region],
        width: int,
    ) -> None:
        super().__init__()
        self.function, self.edited, self.regions, self.width = function, edited, regions, width

    def statement(self, original: cst.BaseStatement) -> tuple[list[cst.BaseStatement], int]:
        """What it becomes, and how many of these statements are not behind it."""
        if id(original) in self.edited:
            return self.edited[id(original)]
        new = original.visit(self)
        assert isinstance(new, cst.BaseStatement)
        return [new], 1

    def of(self, block: cst.CSTNode) -> list[Region]:
        """The scopes of a block."""
        return [region for region in self.regions if region.block is block]

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> bool:
        return False  # its statements are visited one by one

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.BaseSuite:
        items = [(statement, *self.statement(statement)) for statement in original_node.body]
        regions = [region for region in self.of(original_node) if not self._is_joined(region)]
        if all(len(new) == 1 and new[0] is old for old, new, _ in items) and not regions:
            return updated_node
        return updated_node.with_changes(body=wrapped(self.function, items, regions))

    def leave_With(self, original_node: cst.With, updated_node: cst.With) -> cst.With:
        joined = [r.head[-1] for r in self.regions if r.around is original_node and self._is_joined(r)]
        return with_contexts(self.function, original_node, updated_node, joined, self.width) if joined else updated_node

    def _is_joined(self, region: Region) -> bool:
        """Whether the `with` around it opens the scope, too. Not if a prefetch of the last module has to be outside."""
        after = self.edited.get(id(region.last))
        return region.around is not None and (after is None or len(after[0]) == after[1])
