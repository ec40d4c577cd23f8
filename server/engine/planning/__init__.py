"""How what there is gets divided: memory once at the start, and the tokens of each step.

Arithmetic over counts, of the machine's and of the requests'. It never allocates, never sees a
tensor and never looks at a clock.
"""
