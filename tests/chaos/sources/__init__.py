"""Put on the path of children where the network is made of proxies."""
