"""The other forms of a chat, /v1/responses and /v1/messages: their bodies, answers and errors.

Each is turned into a chat on its way in and written in its own words on its way out. It never
generates anything itself.
"""
