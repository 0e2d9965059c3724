"""Put on the path of children of a chaos run."""
