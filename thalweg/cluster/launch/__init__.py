"""Starting the tasks of a cluster: as processes of this machine, or as actors of Ray."""
