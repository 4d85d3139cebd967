"""The card that lies beside a trained network."""

from __future__ import annotations

from .train import PredictorTraining

__all__ = ["predictor_card"]


def predictor_card(
    training: PredictorTraining,
    *,
    drafter: str | None = None,
    title: str = "Routing predictor",
    data: str = "",
    evaluation: str = "",
) -> str:
    """Return a card in Markdown: what the network is, what it learned from, how good it is.

    Parameters
    ----------
    training : PredictorTraining
    drafter : str, optional
        Whose states it reads.
    title : str
        The heading.
    data : str, optional
        What the traces were recorded from; a paragraph.
    evaluation : str, optional
        What else was measured; a paragraph.
    """
    shape = training.network.shape
    numbers = sum(weight.numel() for weight in training.network.parameters())
    reads = "the token and the depth"
    if shape.state_size:
        whose = f"the {drafter} drafter's" if drafter else "its drafter's"
        reads = f"the token, {whose} hidden state (size {shape.state_size}) and the depth"
    layers = "".join(f"| {i} | {r:.1%} |\n" for i, r in enumerate(training.recall))
    depths = "".join(f"| {d} | {r:.1%} |\n" for d, r in training.recall_by_depth.items())
    passes = len(training.train_loss)
    often = "one pass" if passes == 1 else f"{passes} passes"
    return (
        f"# {title}\n\n"
        "Predicts which experts a draft token will use, for specfit's predictor `learned`. Made "
        f"for one target ({shape.n_layers} MoE layers of {shape.n_experts} experts, "
        f"top-{shape.top_k}) and for the drafter that its recordings came from: with others it "
        f"says nothing. {numbers:,} weights in float16 read {reads}.\n\n"
        "## Data and training\n\n"
        + (f"{data}\n\n" if data else "")
        + f"{training.nodes:,} recorded nodes, {often} over them with AdamW. Tokens that were not "
        "among them share one embedding.\n\n"
        "## Measured quality\n\n"
        f"Top-{shape.top_k} recall on {training.held_out_nodes:,} nodes of texts that were held "
        f"out: {training.recall.mean():.1%}, loss {min(training.held_out_loss):.3f} nats per used "
        f"expert ({training.held_out_loss[0]:.3f} before training, from how often each token used "
        "each expert).\n\n"
        f"| layer | recall |\n| --- | --- |\n{layers}\n"
        f"| depth | recall |\n| --- | --- |\n{depths}"
        + (f"\n{evaluation}\n" if evaluation else "")
    )
