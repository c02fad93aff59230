"""The ClientApp: plain PyTorch. Only the answer to "query.profile" is Espalier's."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from espalier.clients.device.profile import profile_reply

from .task import new_model, node_data

app = ClientApp()


@app.query("profile")
def profile(message: Message, context: Context) -> Message:
    """Say which node this is, so that the server can put it under an edge."""
    return profile_reply(message, partition_id=context.node_config["partition-id"])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for one epoch."""
    model, (inputs, labels, _, _) = _model_and_data(message, context)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    # The round number makes every round shuffle the examples differently, in the same way in every run.
    shuffle = torch.Generator().manual_seed(context.run_config["seed"] + message.content["config"]["server-round"])
    total_loss = 0.0
    for batch in torch.randperm(len(labels), generator=shuffle).split(32):
        loss = cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total_loss += loss.item() * len(batch)
    metrics = MetricRecord({"train_loss": total_loss / len(labels), "num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test the model on this node's test images."""
    model, (_, _, inputs, labels) = _model_and_data(message, context)
    with torch.inference_mode():
        accuracy = (model(inputs).argmax(1) == labels).float().mean().item()
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": len(labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def _model_and_data(message, context):
    """Return the model with the weights in the message, and this node's data."""
    torch.set_num_threads(1)  # with another number, sums could round differently
    seed, node = context.run_config["seed"], context.node_config
    model = new_model(seed)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model, node_data(seed, node["partition-id"], node["num-partitions"])
