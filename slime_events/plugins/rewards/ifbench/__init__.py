"""`ifbench`: checks whether a response follows the instructions of IFBench (arXiv 2507.02833) in its prompt."""
