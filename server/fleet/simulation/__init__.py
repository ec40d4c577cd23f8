"""A fleet of any size on paper: the real router over modelled replicas, event by event."""
