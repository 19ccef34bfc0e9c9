"""Plans a run by arithmetic: GPUs, machines, memory, data volumes. It starts nothing and reads no clock."""
