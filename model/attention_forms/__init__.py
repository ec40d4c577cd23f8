"""Forms of attention that the literature teaches, each as a function short enough to read.

Reference code for the lesson in docs/attention.md: the server itself runs model/attention.py.
Every form has one file, one source, and one line in form_cost.py that says what a new token costs
and what must be kept for it. Shapes use the legend of `model`; leading axes are always optional.
"""
