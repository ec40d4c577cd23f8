"""What may be known of the server at work: timelines, snapshots, counts, and facts of the model.

It watches and remembers, in memory of fixed size. It never decides anything, and never keeps a text
or a token.
"""
