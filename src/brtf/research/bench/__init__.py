"""Speed and memory on this machine, as ratios to references measured in the same run: what ``brtf bench`` prints.

Seconds depend on the machine and its load as much as on the program. Ratios to a matrix product, a copy of the data or
another program's fit, measured alternately, carry over to other machines.
"""
