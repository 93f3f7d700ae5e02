"""The front door: observations, checks of what comes in, files read, blocks and chunks of entries, passes over them."""
