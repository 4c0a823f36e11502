"""Pure functions of tensors: advantages and losses, each with its source."""
