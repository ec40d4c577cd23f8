"""The C++ sources of the native kernels and, once built, one library per instruction set.

Nothing here is imported as Python: `model.native_library` finds the libraries and loads one.
"""
