"""Load test, cache comparison and plots: clients of the server and of the public engine."""
