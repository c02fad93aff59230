"""A run's parts, each made from its settings: task, clients, edges, plans, and the algorithm over them."""
