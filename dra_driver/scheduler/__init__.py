"""Answer what Kubernetes' scheduler would say."""
