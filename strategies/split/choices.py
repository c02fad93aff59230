"""What a Flower strategy may say over split training: whom to ask, and the weight of a proximal term."""

from collections.abc import Collection

from flwr.app import ArrayRecord, ConfigRecord, Message

from espalier.clients.messages.train import SERVER_ROUND
from espalier.clients.shared.records import records_in


def beyond_a_choice(
    message: Message, sent: ArrayRecord, config: ConfigRecord, passed_on: Collection[str] = ()
) -> str | None:
    """Return what a strategy's instruction says that split training can't do; None where it only asks a client.

    Parameters
    ----------
    message : Message
        The instruction.
    sent, config : ArrayRecord, ConfigRecord
        The model and the config that the strategy was given.
    passed_on : Collection[str] (default: none)
        What it may tell clients.
    """
    models = list(records_in(message.content, ArrayRecord).values())
    configs = list(records_in(message.content, ConfigRecord).values())
    if len(models) != 1 or len(message.content) != 1 + len(configs) or len(configs) > 1:
        return "sends clients other records than a model and a config, which split training does not pass on"
    if models[0].keys() != sent.keys() or any(models[0][n] is not sent[n] and models[0][n] != sent[n] for n in sent):
        return "sends clients another model than the edge's, which split training does not pass on"
    told = configs[0] if configs else ConfigRecord()
    known = (SERVER_ROUND, *passed_on)
    if new := sorted(key for key in told if key not in known and (key not in config or told[key] != config[key])):
        return f"tells clients {', '.join(new)}, which split training does not pass on"
    return None
