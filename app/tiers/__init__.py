"""Two tiers on hosts of their own: the edge's run, and the edges as the cloud's run sees them."""
