"""While Dynamo traces a frame: which calls of a region are traced, and which are stamped out of a traced one."""
