"""Weights in, logits out, and text to ids and back; knows no requests and no HTTP.

How the files of a model are read stands in formats, what its tokenizer and its chat template are
made of in text, and the C++ in kernels.

Shape legend, used in every comment and docstring of the project:

    N    tokens in the flat batch of one forward pass
    B    requests in that batch
    T    new tokens of one request
    S    tokens a query can see: cached ones and its own
    H    query heads
    Hkv  key/value heads
    D    size of one head
    C    hidden size
    V    vocabulary size
    R    rows of the batch whose logits are wanted
"""
