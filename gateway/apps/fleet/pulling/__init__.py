"""`gateway fleet pull`: weights and images onto the nodes. `cache`, `files` and `node` run there."""
