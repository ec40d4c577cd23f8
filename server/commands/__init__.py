"""The commands that serve, generate, chat and inform, each in a file of its name.

They turn options into a configuration and start what does the work. They never compute anything
themselves; the measuring commands are server.tools'.
"""
