"""The card that lies beside a trained network."""

from __future__ import annotations

from .train import RouterTraining

__all__ = ["router_card"]


def router_card(
    training: RouterTraining, *, drafter: str | None = None, data: str = "", title: str = ""
) -> str:
    """Return a card in Markdown: what the network is, what it learned from, how good it is.

    Parameters
    ----------
    training : RouterTraining
    drafter : str, optional
        Whose states it reads.
    data : str, optional
        What the traces were recorded from; a paragraph.
    title : str, optional
        The heading.
    """
    shape = training.network.shape
    numbers = sum(weight.numel() for weight in training.network.parameters())
    reads = "the token and the depth"
    if shape.state_size:
        whose = f"the {drafter} drafter's" if drafter else "its drafter's"
        reads = f"the token, {whose} hidden state (size {shape.state_size}) and the depth"
    layers = "".join(f"| {i} | {r:.1%} |\n" for i, r in enumerate(training.recall))
    depths = "".join(f"| {d} | {r:.1%} |\n" for d, r in training.recall_by_depth.items())
    paragraph = f"{data}\n\n" if data else ""
    return (
        f"# {title or 'Router network'}\n\n"
        "Predicts which experts a draft token will use, for specfit's predictor `learned`. Made "
        f"for one target ({shape.n_layers} MoE layers of {shape.n_experts} experts, "
        f"top-{shape.top_k}) and for the drafter that its recordings came from: with others it "
        f"says nothing. {numbers:,} weights in float16 read {reads}.\n\n"
        "## Data and training\n\n"
        f"{paragraph}"
        f"{training.nodes:,} recorded nodes, {len(training.train_loss)} passes over them with "
        "AdamW. Tokens that were not among them share one embedding.\n\n"
        "## Measured quality\n\n"
        f"Top-{shape.top_k} recall on {training.held_out_nodes:,} nodes of texts that were held "
        f"out: {training.recall.mean():.1%}, loss {min(training.held_out_loss):.3f} nats per used "
        f"expert ({training.held_out_loss[0]:.3f} for a table of each token's experts).\n\n"
        f"| layer | recall |\n| --- | --- |\n{layers}\n"
        f"| depth | recall |\n| --- | --- |\n{depths}"
    )
