"""The software GPU's compiler: one kernel's PTX becomes an object for the host.

PTX is read and inlined (rankfold.proxy.ptx), divided into blocks at the cuts (flow.py), lowered
(lower.py, segment.py, and the modules of instructions) to LLVM IR, which codegen.py compiles.
"""
