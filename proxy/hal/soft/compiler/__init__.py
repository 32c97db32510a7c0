"""The software GPU's compiler: one kernel's PTX becomes an object for the host.

PTX (rankfold.proxy.ptx) is inlined (inline.py), divided into blocks at the cuts (flow.py), lowered
(lower.py, segment.py, and the modules of instructions) to LLVM IR, which codegen.py compiles.
"""
