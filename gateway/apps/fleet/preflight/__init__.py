"""What would make a start fail on a node, and the command that mends it.

`host`, the `checks_*` and `node` import nothing but the standard library and each other: their sources are
sent to a node's `python3 -` (`run`), which has nothing else. `expect` says what routes.yaml expects of a node.
"""
