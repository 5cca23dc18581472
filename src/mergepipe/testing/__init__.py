"""Contract suites, tiny models and fault injection for tests; nothing in the package imports it."""
