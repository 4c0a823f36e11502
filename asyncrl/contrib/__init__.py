"""Features that only some runs need. Each folder can be deleted: the core imports none, and finds them by scanning.

A folder is connected by its module `hooks` (`asyncrl.config.hooks`).
"""
