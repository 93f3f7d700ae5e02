"""Files that brtf writes: results, checkpoints, tables and Zarr stores."""
