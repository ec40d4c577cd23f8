"""What an answer must be made of, and how it is taken apart: schemas, grammars, tools, thoughts.

It says what a text must fit and reads one that does. It never chooses a token and never writes an
answer.
"""
