"""The launch files under real launchers, on two network namespaces as hosts: python -m tools.launchers."""
