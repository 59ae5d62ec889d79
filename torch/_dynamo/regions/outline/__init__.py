"""At the end of a frame, runs of operators become bodies and calls of those bodies."""
