"""Two tiers in several processes: edges that answer requests, and the edges as whoever asks them sees them."""
