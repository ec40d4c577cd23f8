"""What the server counts and shows of itself: Prometheus metrics and traces of requests."""
