"""What is written and read again: results, checkpoints, tables and stores."""
