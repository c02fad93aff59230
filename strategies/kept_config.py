"""What a strategy changes in its config stays, as in a run of Flower's own."""

from collections.abc import Mapping
from copy import copy
from typing import Any, Final

from flwr.app import ConfigRecord

from espalier.clients.messages.train import SERVER_ROUND

CONFIG_STATE: Final = "espalier.config"  # in an edge's state; no attribute of a strategy can have this name


class KeptConfig:
    """The config of one kind of instruction, from round to round.

    Flower gives a strategy the same record in each round, so that ``config["lr"] *= 0.5`` in its ``configure_train``
    adds up. A tier gets a new one in each round, from above. What its strategy made of an entry holds until another
    value comes from there.
    """

    def __init__(self) -> None:
        self._made: dict[str, list[Any]] = {}  # by key: what came from above, and what became of it; None is no entry

    def with_changes(self, config: Mapping[str, Any]) -> ConfigRecord:
        """Return a new record for the strategy: what came from above, as the strategy has changed it so far."""
        made = {key: now for key, (before, now) in self._made.items() if config.get(key) == before}
        told = {**config, **made}
        return ConfigRecord({key: copy(value) for key, value in told.items() if value is not None})

    def note(self, config: Mapping[str, Any], told: ConfigRecord) -> None:
        """Take note of what the strategy has made of `told`, which `with_changes` gave it for `config`."""
        self._made = {
            key: [copy(config.get(key)), copy(told.get(key))]
            for key in {**config, **told}
            if key != SERVER_ROUND and config.get(key) != told.get(key)  # Flower's strategies set that in each round
        }

    def state_dict(self) -> dict[str, list[Any]]:
        """Return what to keep for `load_state_dict`."""
        return self._made

    def load_state_dict(self, state: Mapping[str, list[Any]]) -> None:
        """Take back what `state_dict` returned."""
        self._made = dict(state)
