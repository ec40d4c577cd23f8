"""Executors: what runs a model's passes on one kind of device, behind one interface."""
