"""How tokens spread over experts: static sizes, and what to expect of the rows that reach one die."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Routing:
    """The static part of a mixture of experts.

    Attributes:
        experts: routed experts of the layer, over all dies.
        zero_experts: experts that return their input and own no weights.
        top_k: experts per token, zero experts included.
        ep_size: dies that share the experts.
        tp_size: dies that share each expert.
    """

    experts: int
    zero_experts: int
    top_k: int
    ep_size: int
    tp_size: int = 1

    @property
    def local_experts(self) -> int:
        return self.experts // self.ep_size

    def expected_rows(self, tokens: int) -> float:
        """Rows that reach one die: tokens of all dies x top_k / all experts x local experts."""
        return tokens * self.ep_size * self.top_k / (self.experts + self.zero_experts) * self.local_experts

    def active_share(self, tokens: int) -> tuple[float, float, float]:
        """Low, nominal, high share of local experts with a token: 1 - (1 - k/E)^n, n tokens of all dies.

        The band halves and doubles n: skewed routing acts like fewer independent tokens, padding like more.
        """
        miss = 1 - self.top_k / (self.experts + self.zero_experts)
        n = tokens * self.ep_size
        return 1 - miss ** (n / 2), 1 - miss**n, 1 - miss ** (2 * n)
