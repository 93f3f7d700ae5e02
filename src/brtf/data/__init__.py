"""Input: observations and their checks, file readers, blocks and chunks of entries, passes over them."""
