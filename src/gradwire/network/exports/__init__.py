"""Routes as jobs read them."""
