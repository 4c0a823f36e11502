"""The Hogwild backend: workers with private environments and gradients train one set of shared parameters."""
