"""The software GPU's compiler: it turns one kernel's PTX into an object for the host.

PTX is read and inlined (rankfold.proxy.ptx), divided into blocks at the cuts (flow.py), and lowered
(lower.py, segment.py, and the modules of instructions) to LLVM IR, which codegen.py compiles.
"""
