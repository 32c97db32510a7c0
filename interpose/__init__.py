"""What is loaded into a job: the preloaded library, its generator, and the launcher of a rank."""
