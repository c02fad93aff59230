"""A toy federation whose clients are a line of NumPy, so that references can be written by hand."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from espalier.clients.device.profile import profile_reply
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import ask_profiles, group_by_edge

Weights = dict[str, np.ndarray]


def initial() -> Weights:
    rng = np.random.default_rng(7)
    return {"w": rng.normal(size=5).astype(np.float32), "b": rng.normal(size=(2, 3)).astype(np.float32)}


def examples_of(client: int) -> int:
    return 10 + 7 * client


def local_step(weights: Weights, client: int, server_round: int, mu: float = 0.0) -> Weights:
    """The client's training: a step towards a point of its own that depends on the round."""
    target = np.float32(np.sin(3 * client + server_round))
    return {name: (w + np.float32(0.5 / (1 + mu)) * (target - w)).astype(w.dtype) for name, w in weights.items()}


def toy_app(faults: dict[int, str] | None = None, first_bad_round: int = 1) -> ClientApp:
    """A ClientApp; client i misbehaves as `faults[i]` says, from `first_bad_round` on."""
    app = ClientApp()

    @app.query("profile")
    def profile(message: Message, context: Context) -> Message:
        i = int(context.node_config["partition-id"])
        return profile_reply(message, partition_id=i, num_train_examples=examples_of(i))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        i = int(context.node_config["partition-id"])
        config = message.content["config"]
        weights = to_numpy(message.content["arrays"])
        new = local_step(weights, i, int(config["server-round"]), float(config.get("proximal-mu", 0.0)))
        metrics = {"train_loss": float(i), "num-examples": examples_of(i)}
        fault = (faults or {}).get(i) if int(config["server-round"]) >= first_bad_round else None
        if fault == "raise":
            raise ValueError("the battery\nis empty")
        if fault in ("nan", "inf"):
            new["w"][2] = np.nan if fault == "nan" else np.inf
        if fault == "shape":
            new["w"] = new["w"][:-1]
        if fault == "missing":
            del new["b"]
        if fault == "extra":
            new["c"] = new["b"]
        if fault == "dtype":
            new["w"] = new["w"].astype(np.complex64)
        if fault == "no weight":
            del metrics["num-examples"]
        if fault == "no loss":
            del metrics["train_loss"]
        if fault == "negative weight":
            metrics["num-examples"] = -1
        if fault == "metrics":
            metrics["boast"] = 1.0
        if fault == "list":
            metrics["train_loss"] = [1.0, 2.0]
        if fault == "nan loss":
            metrics["train_loss"] = float("nan")
        if fault == "too large":
            new["w"] = np.full(5, 1e300)
        records = {"arrays": to_record(new), "metrics": MetricRecord(metrics)}
        if fault == "no arrays":
            del records["arrays"]
        if fault == "two arrays":
            records["more"] = to_record(new)
        if fault == "renamed arrays":
            records["weights"] = records.pop("arrays")
        if fault == "renamed metrics":
            records["m"] = records.pop("metrics")
        return Message(RecordDict(records), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        i = int(context.node_config["partition-id"])
        weights = to_numpy(message.content["arrays"])
        metrics = MetricRecord({"loss": float(np.abs(weights["w"]).sum()) + i, "num-examples": examples_of(i)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def toy_grid(num_nodes: int, *, seed: int = 0, faults: dict[int, str] | None = None, **options) -> InProcessGrid:
    return InProcessGrid(toy_app(faults, **options), num_nodes, seed=seed)


def toy_topology(grid: InProcessGrid, num_edges: int) -> dict[str, list[int]]:
    return group_by_edge(ask_profiles(grid), num_edges)


def to_record(weights: Weights) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(w)) for name, w in weights.items()})


def to_numpy(arrays: ArrayRecord) -> Weights:
    return {name: array.numpy() for name, array in arrays.items()}


# References: each takes the model that was sent out, the replies and their weights.


def average(models: list[Weights], weights: list[float]) -> Weights:
    return {k: sum(m[k] * (w / sum(weights)) for m, w in zip(models, weights, strict=True)) for k in models[0]}


class FedAvgReference:
    def __call__(self, sent: Weights, models: list[Weights], weights: list[float], server_round: int) -> Weights:
        return average(models, weights)


class FedMedianReference:
    def __call__(self, sent: Weights, models: list[Weights], weights: list[float], server_round: int) -> Weights:
        return {k: np.median(np.stack([m[k] for m in models]), axis=0) for k in sent}


class KrumReference:
    """With f = 0: the model with the least sum of distances to its n - 2 closest."""

    def __call__(self, sent: Weights, models: list[Weights], weights: list[float], server_round: int) -> Weights:
        flat = np.stack([np.concatenate([m[k].ravel() for k in sent]) for m in models]).astype(np.float64)
        squared = ((flat[:, None] - flat[None]) ** 2).sum(-1)
        scores = np.sort(squared, axis=1)[:, 1 : max(1, len(models) - 2) + 1].sum(1)
        return models[int(np.argmin(scores))]


class FedAdamReference:
    """Reddi et al. (arXiv:2003.00295), Algorithm 2, with Flower's bias correction."""

    def __init__(self, eta=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3):
        self.eta, self.beta_1, self.beta_2, self.tau = eta, beta_1, beta_2, tau
        self.m: Weights = {}
        self.v: Weights = {}

    def __call__(self, sent: Weights, models: list[Weights], weights: list[float], server_round: int) -> Weights:
        mean, new = average(models, weights), {}
        rate = self.eta * np.sqrt(1 - self.beta_2 ** (server_round + 1)) / (1 - self.beta_1 ** (server_round + 1))
        for k in sent:
            delta = mean[k] - sent[k]
            self.m[k] = self.beta_1 * self.m.get(k, 0.0) + (1 - self.beta_1) * delta
            self.v[k] = self.beta_2 * self.v.get(k, 0.0) + (1 - self.beta_2) * delta**2
            new[k] = sent[k] + rate * self.m[k] / (np.sqrt(self.v[k]) + self.tau)
        return new


class FedAvgMReference:
    """Momentum on the difference between the model that was sent out and the average."""

    def __init__(self, rate: float, momentum: float):
        self.rate, self.momentum = rate, momentum
        self.velocity: Weights = {}

    def __call__(self, sent: Weights, models: list[Weights], weights: list[float], server_round: int) -> Weights:
        mean, new = average(models, weights), {}
        for k in sent:
            step = sent[k] - mean[k]
            self.velocity[k] = self.momentum * self.velocity[k] + step if k in self.velocity else step
            new[k] = sent[k] - self.rate * self.velocity[k]
        return new


def lock_step(cloud, edges, *, members: list[list[int]], rounds: int, edge_rounds: int, mu: float = 0.0) -> Weights:
    """Hierarchical training written as plain loops, one edge after the other."""
    weights = initial()
    for t in range(1, rounds + 1):
        models, sizes = [], []
        for edge, clients in zip(edges, members, strict=True):
            own = weights
            for e in range(1, edge_rounds + 1):
                r = (t - 1) * edge_rounds + e
                own = edge(own, [local_step(own, i, r, mu) for i in clients], [examples_of(i) for i in clients], r)
                own = {k: v.astype(np.float32) for k, v in own.items()}
            models.append(own)
            sizes.append(sum(examples_of(i) for i in clients))
        weights = {k: v.astype(np.float32) for k, v in cloud(weights, models, sizes, t).items()}
    return weights
