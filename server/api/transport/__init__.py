"""The bytes of an exchange: its name, its body, its events, its time, and the client's leaving.

The lowest part of the HTTP side. It never knows an endpoint, a field or a model.
"""
