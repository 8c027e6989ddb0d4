"""What a cache of keys and values is kept in: schemes, their exact sizes, and what runtimes call them."""
