"""Around attention: layers, iterations and the systems that papers compare with."""
