"""Found by programs that have this folder in PYTHONPATH: rankfold.elastic takes the CPU for a GPU
of a type that a comparison covers. Its name is that of CUDA_VISIBLE_DEVICES."""

import os
import sys
from importlib.machinery import PathFinder

NAME = "rankfold.elastic.gpu"


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != NAME:
            return None
        found = PathFinder.find_spec(name, path, target)
        load = found.loader.exec_module

        def exec_module(module):
            load(module)
            module.start = lambda gpu: os.environ.update(GPU_MEMORY=str(gpu.memory))
            module.check_covered = lambda file: None
            module.kind = lambda: "GPU " + os.environ.get(module.VISIBLE, "")

        found.loader.exec_module = exec_module
        return found


sys.meta_path.insert(0, Finder)
