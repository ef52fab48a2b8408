"""Outrider and other engines behind one protocol: each in a process that works when it is told to.

The drivers run in environments of their own; what they share imports the standard library alone.
"""
