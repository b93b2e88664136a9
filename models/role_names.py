"""The roles that a recipe may name after `@`. What each is in a model, `models.roles` finds out."""

from collections.abc import Mapping

from models.problems import did_you_mean

ROLES: Mapping[str, str] = {
    "mixer": "what mixes tokens: attention, a state-space or a recurrent block",
    "attention.in": "projections of the mixer that read its input: q, k, v, or merged; of MLA q_a and kv_a",
    "attention.inner": "its projections of projections: q_b and kv_b of MLA, those between two states of a Mamba block",
    "attention.out": "its output projection",
    "attention.q": "the query projections, where they are apart from keys and values",
    "attention.k": "the key projection, likewise",
    "attention.v": "the value projection, likewise",
    "feed_forward": "the feed-forward: a dense MLP or a mixture of experts",
    "feed_forward.before": "what ends last before it, norms aside: the mixer's output projection if it flows "
    "into it, else (attention and feed-forward in parallel) the norm that it reads",
    "mlp.gate": "of a dense feed-forward: the projection that goes through the activation, where up is apart",
    "mlp.up": "the other projection to the intermediate size; the only or merged one",
    "mlp.down": "the projection back",
    "moe.router": "what scores the experts",
    "moe.experts.up": "first weights of the experts: gate, up or merged",
    "moe.experts.down": "second weights of the experts",
    "moe.shared.gate": "of the shared experts, as mlp.gate",
    "moe.shared.up": "as mlp.up",
    "moe.shared.down": "as mlp.down",
    "norm.mixer": "the norm that the mixer reads",
    "norm.mixer_out": "a norm of the mixer's output",
    "norm.feed_forward": "the norm that the feed-forward reads",
    "norm.feed_forward_out": "a norm of the feed-forward's output",
}


def unknown_role(role: str) -> str | None:
    """A sentence that helps with a role that does not exist; None if it does."""
    return None if role in ROLES else did_you_mean(role, ROLES)
