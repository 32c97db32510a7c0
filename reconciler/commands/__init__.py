"""The commands of `rankfold`: who looks, who changes what is desired, who runs one job."""
