"""Lowering, memory and cached code of the bodies of regions."""
