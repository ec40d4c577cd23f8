"""How what there is gets divided: memory once at the start, and the tokens of each step.

Plain arithmetic over counts. It never allocates, never sees a tensor and never looks at a clock.
"""
