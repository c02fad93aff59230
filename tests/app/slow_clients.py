"""Algorithms whose client 1 sleeps in every edge round; devices can have this file, which imports no other test."""

import time
from dataclasses import replace

from espalier.app.algorithms.h_fedavg import H_FEDAVG
from espalier.app.algorithms.hsfl import HSFL
from espalier.clients.half import ClientHalf
from espalier.clients.messages.split_names import SPLIT_BEGIN, SPLIT_FUSED, SPLIT_STREAM
from espalier.clients.messages.train import TRAIN

SLOW_CLIENT = 1
SLEEP = 0.5  # seconds
SLEEP_ON_MACHINES = 8.0  # where loading the data alone may take one device a tenth of a second more


def sleeping(seconds):
    """Return what makes the slow client sleep before it answers."""

    def sleep(message, context, call_next):
        if context.node_config["partition-id"] == SLOW_CLIENT:
            time.sleep(seconds)
        return call_next(message, context)

    return ClientHalf(mods={kind: [sleep] for kind in (TRAIN, SPLIT_BEGIN, SPLIT_FUSED, SPLIT_STREAM)})


QUICK = replace(H_FEDAVG, client=sleeping(0.0))
WHOLE = replace(H_FEDAVG, client=sleeping(SLEEP))
SPLIT = replace(HSFL, client=sleeping(SLEEP))
WHOLE_ON_MACHINES = replace(H_FEDAVG, client=sleeping(SLEEP_ON_MACHINES))
