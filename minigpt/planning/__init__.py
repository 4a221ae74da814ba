"""Settings that the user did not give, from a measurement of this machine and a scaling law."""
