"""The one observer of a Node: its parts turn what crosses the Node's edge into rows of a trace."""
