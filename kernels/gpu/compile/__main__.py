import sys

from kernels.gpu.compile.report import main

if __name__ == "__main__":
    sys.exit(main())
