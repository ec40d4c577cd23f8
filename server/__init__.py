"""The generation server, its modules named in the order in which a request meets them."""
