"""How weights lie on a GPU: what a format is made of, and packing and unpacking bit for bit. numpy alone."""
