"""The table of request fields, and the errors that name them."""
