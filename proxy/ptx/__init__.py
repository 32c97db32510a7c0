"""Reads PTX and fatbins: what every kind of device needs of a program's code.

Imports no kind of device, and nothing that compiles.
"""
