"""Code of the protocols for tables and for images: configuration, published numbers, figures."""
