"""From a Request to its outputs: the engine thread and what it owns; knows no HTTP."""
