"""Code that is loaded into a job: the preloaded library, its generator, a rank's launcher."""
