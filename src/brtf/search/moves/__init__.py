"""The moves of the search, one file each: what it proposes, what that costs, and when to try again."""
