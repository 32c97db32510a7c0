"""The main job, end to end: `python -m examples.demo`, or `make demo`.

A four-rank training job runs twice from the same desired state: once undisturbed on four devices,
once while commits fold it onto one, two and three devices, suspend it and resume it. The demo uses
`git` and the `rankfold` command, and nothing else of rankfold.
"""
