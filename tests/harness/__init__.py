"""What bench, soak, chaos and `make prometheus` share: API servers, timed calls of a kubelet, claims, and figures."""
