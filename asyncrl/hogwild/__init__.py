"""The other backend: workers that each own environments and gradients and share one set of parameters."""
