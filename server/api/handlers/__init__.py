"""What stands behind the routes: the gates, the handlers, and what they share.

The only sub-package that knows FastAPI or Starlette beside the transport's own end of a connection.
It reads, asks and answers; it never looks inside the engine, and what an answer is made of is said
elsewhere.
"""
