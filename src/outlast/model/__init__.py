"""Values. Frozen, standard library only: what every room speaks of, and nothing that acts."""
