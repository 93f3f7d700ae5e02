"""The search for the best state: starts, moves, and the loop that settles and judges them."""
