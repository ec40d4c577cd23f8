"""What model files say: where they are found, how they are read, and what their fields mean.

It reads within bounds whatever somebody else wrote. It never builds a model.
"""
