"""While Dynamo traces a frame: traces a region's first call, and stamps later calls out of it."""
