"""A region that repeats in a frame is traced once, stamped out for its other calls, and outlined into one body."""
