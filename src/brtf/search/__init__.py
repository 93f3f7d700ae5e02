"""The search: starts, moves, and the one judge of them all, from the first state to the last."""
