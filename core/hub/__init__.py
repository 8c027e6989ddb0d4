"""Models from a hub: search, what a repository holds, download. No Qt; the libraries are imported when first used."""
