"""Speed and memory on this machine, as ratios to references measured in the same run: what ``brtf bench`` prints.

Seconds say as much about a machine and its other users as about a program; ratios to a matrix product, a copy of the
data or another program's fit, taken in turns with it, carry over.
"""
