# Bitsmith: `make run` opens the window, `make test` runs the tests. Both set up .venv in this folder first.
# Nothing is installed outside .venv. Each step leaves a stamp file, so that a second call starts at once.

PYTHON ?=
VENV := .venv
PY := $(VENV)/bin/python
# cmake and ninja of .venv are found first.
PIP := PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m pip --disable-pip-version-check install --quiet -c constraints.txt
BUILD_TOOLS := scikit-build-core nanobind cmake ninja setuptools
NATIVE := $(wildcard CMakeLists.txt) $(shell find kernels/cpu -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.inl')
CPP := $(filter kernels/%,$(NATIVE))
PYTEST_ARGS ?=

export PYTHONNOUSERSITE := 1

.PHONY: help run test test-slow gpu-compile lint format screens pictures bench clean
.DEFAULT_GOAL := help

help:
	@echo "make run      open the window, with a sample model at hand (without a display: the same job as text)"
	@echo "make test     run the tests          make test PYTEST_ARGS='-m \"not slow and not interop\"' leaves other programs out"
	@echo "make test-slow  run what takes longer: whole contexts, every method on every family, limits of memory"
	@echo "make gpu-compile  compile every GPU kernel for ten cards, and check what the assemblers made of them (no GPU needed)"
	@echo "make lint     ruff, mypy, import-linter, clang-format"
	@echo "make format   let ruff and clang-format lay out the code"
	@echo "make screens  write pictures of every page, light and dark, to build/screens/"
	@echo "make pictures make the pictures of the window in docs/ anew (MODEL=FOLDER: another model in docs/images)"
	@echo "make bench    print rates as ratios against llama.cpp on this computer"
	@echo "make installer  build the installers of this system into dist/, install them and try what was installed (half an hour)"
	@echo "make installer-again  build the program a second time and compare the hashes of all files"
	@echo "make clean    remove .venv and build/"

# ---- set-up --------------------------------------------------------------------------------------------------------

$(VENV)/.made:
	@python="$$(sh packaging/find_python.sh '$(PYTHON)')" || exit 1; \
	"$$python" -m venv $(VENV) || { \
	  echo "$$python can not make a virtual environment. On Debian and Ubuntu: apt install python3-venv." >&2; exit 1; }
	@touch $@

# torch goes first and by itself, so that pip takes the wheel at hand before another package asks for any torch.
$(VENV)/.base: $(VENV)/.made constraints.txt
	@echo "Installing torch and the build tools into $(VENV) (once) …"
	@$(PIP) torch==2.13.0
	@$(PIP) $(BUILD_TOOLS)
	@touch $@

# Without a compiler the build leaves the compiled kernels out by itself; the second try is for one that fails midway.
$(VENV)/.installed: $(VENV)/.base pyproject.toml $(NATIVE)
	@echo "Installing Bitsmith and its dependencies into $(VENV) …"
	@$(PIP) --no-build-isolation --editable . 2>$(VENV)/install.log || { \
	  echo "The compiled kernels were not built ($(VENV)/install.log says why); numpy does their work, more slowly." >&2; \
	  $(PIP) --no-build-isolation --config-settings=wheel.cmake=false --editable .; }
	@touch $@

$(VENV)/.tested: $(VENV)/.installed packaging/extras.py
	@echo "Installing what the tests and the linters need …"
	@$(PY) packaging/extras.py test dev >$(VENV)/extras.txt
	@$(PIP) -r $(VENV)/extras.txt
	@touch $@

# ---- use -----------------------------------------------------------------------------------------------------------

run: $(VENV)/.installed
	@sh packaging/run.sh $(VENV)/bin

test: $(VENV)/.tested
	@$(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" $(PYTEST_ARGS)

test-slow: $(VENV)/.tested
	@$(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m slow $(PYTEST_ARGS)

# Triton keeps what it has compiled there, by a hash of sources and settings.
gpu-compile: export TRITON_CACHE_DIR = $(CURDIR)/build/gpu-compile
gpu-compile: $(VENV)/.tested
	@$(PY) -W ignore -m kernels.gpu.compile --processes 2

lint: $(VENV)/.tested
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-cache
	@$(if $(CPP),$(VENV)/bin/clang-format --dry-run -Werror $(CPP),:)

format: $(VENV)/.tested
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	@$(if $(CPP),$(VENV)/bin/clang-format -i $(CPP),:)

screens: $(VENV)/.tested
	$(PY) tests/app/screens.py

pictures: $(VENV)/.tested
	$(PY) tests/app/pictures.py $(MODEL)

bench: $(VENV)/.tested
	@for file in tests/benchmarks/*.py; do echo "== $$file"; PYTHONPATH=. $(PY) $$file || exit 1; done

# FLAVOUR=gpu builds the one with the libraries for graphics cards, several GB.
FLAVOUR ?= cpu
BUILDER = "$$(sh packaging/find_python.sh '$(PYTHON)')"

installer:
	@python=$(BUILDER) && "$$python" packaging/build.py --flavour $(FLAVOUR) && \
	  case "$$(uname -s)" in Linux) "$$python" packaging/try_installer.py --flavour $(FLAVOUR) ;; esac

installer-again:
	@python=$(BUILDER) && "$$python" packaging/compare.py --flavour $(FLAVOUR)

clean:
	rm -rf $(VENV) build
