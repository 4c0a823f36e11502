"""One typed schema, its loading from presets, files and flags, cross-field checks, and the resource plan."""
