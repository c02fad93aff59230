"""Clients whose losses are quadratic, so that all constants of the papers' theorems are known."""

import numpy as np


class Quadratics:
    """Losses ``(w - c_u)' A_u (w - c_u) / 2`` of the clients of cells, with beta = 1: no eigenvalue is above it."""

    def __init__(self, rng, dimension=3):
        cells, clients = int(rng.integers(1, 4)), int(rng.integers(1, 5))
        self.cell = np.repeat(np.arange(cells), clients)
        self.alpha_b, self.alpha_u = rng.dirichlet(np.ones(cells)), rng.dirichlet(np.ones(clients), size=cells)
        bases, _ = np.linalg.qr(rng.normal(size=(len(self.cell), dimension, dimension)))
        curvatures = rng.uniform(0.05, 1, size=(len(self.cell), dimension))
        self.matrices = np.einsum("uij,uj,ukj->uik", bases, curvatures, bases)
        self.centres = rng.normal(size=(len(self.cell), dimension)) * rng.choice([0.3, 2.0])
        self.within = np.zeros((cells, len(self.cell)))  # each cell's weights of all clients
        self.within[self.cell, np.arange(len(self.cell))] = self.alpha_u.ravel()
        self.weights = self.alpha_b @ self.within
        self.start = rng.normal(size=dimension) * 3

    def gradients(self, models):
        """Return each client's gradient at its own model, shape ``(..., U, dimension)``."""
        return np.einsum("uij,...uj->...ui", self.matrices, models - self.centres)

    def loss(self, model):
        """Return the global loss of a model, or of many of shape ``(..., dimension)``."""
        apart = model[..., np.newaxis, :] - self.centres
        return np.einsum("u,...ui,uij,...uj->...", self.weights, apart, self.matrices, apart) / 2

    def slope(self, models):
        """Return the squared norm of the global gradient at models of shape ``(..., dimension)``."""
        gradient = self.weights @ self.gradients(models[..., np.newaxis, :])
        return (gradient**2).sum(-1)

    def divergence(self, visited, rounds=1.0):
        """Return epsilon_0^2 and epsilon_1^2 over all visited models; `rounds` are each client's in the second."""
        models = np.concatenate([np.reshape(v, (-1, 1, len(self.start))) for v in visited])
        gradients = self.gradients(models)
        in_cell = ((gradients - (self.within @ gradients)[:, self.cell]) ** 2).sum(-1)
        of_cells = self.within @ (gradients * np.broadcast_to(rounds, self.cell.shape)[:, np.newaxis])
        of_all = self.alpha_b @ of_cells
        apart = ((of_cells - of_all[:, np.newaxis]) ** 2).sum(-1)
        return float((in_cell @ self.within.T).max()), float((apart @ self.alpha_b).max())


def worlds(count):
    """Yield so many generators of seeds from 0 on, each with the clients that it has drawn."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        yield rng, Quadratics(rng)
