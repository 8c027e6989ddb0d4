"""How the numbers inside an artifact are chosen when it takes data: solvers of one weight, transforms of a block."""
