"""What Inductor does with the bodies of regions."""
