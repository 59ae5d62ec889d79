"""Regions that repeat in one frame: traced once, stamped out, outlined into one body."""
