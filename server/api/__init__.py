"""From HTTP to a Request and back: application, handlers and wire forms; knows no tensors."""
