"""What a client does with a whole model: it trains and evaluates it."""
