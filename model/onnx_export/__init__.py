"""A model as ONNX: the decoder with its cache as inputs and outputs, for other runtimes.

Needs the package `onnx`, an optional extra; nothing else of the project imports this.
"""
