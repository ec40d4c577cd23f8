"""The same application on Ray Serve: many replicas behind fronts, and no answer lost with one."""
