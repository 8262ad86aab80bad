"""The core: sequences, the block pool and its prefix cache, and the plan of each step. Standard library only."""
