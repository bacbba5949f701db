"""A store's own CTI: the record of what each writer has promised (semantics 30); no I/O."""
