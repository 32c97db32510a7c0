"""The commands of `rankfold`: to inspect a fleet, to change its desired state, to run one job."""
