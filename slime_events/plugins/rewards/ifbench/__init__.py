"""`ifbench`: whether a response keeps to the instructions of IFBench (arXiv 2507.02833) that its prompt gave."""
