import sys

from kernels.gpu.bench.run import main

if __name__ == "__main__":
    sys.exit(main())
